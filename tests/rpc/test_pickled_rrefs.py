"""References in messages whose pickling makes calls of its own: each is counted all the same."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.rpc as rpc
from waiting import wait_until
from workers import Group

import weft

KEPT: list[Any] = []


class Chatty:
    """Calls another worker while it is pickled."""

    def __reduce__(self):
        rpc.rpc_sync("worker1", torch.neg, args=(torch.ones(1),))
        return (list, ())


def keep(values: list[Any]) -> None:
    KEPT.append(values)


def drop() -> None:
    KEPT.clear()


def give(owner: str) -> None:
    """Gives worker1 a reference to a value of ours, or to one of worker0's."""
    rref = rpc.RRef(5) if owner == "own" else rpc.remote("worker0", int, args=(5,))
    rpc.rpc_sync("worker1", keep, args=([rref, Chatty()],))


def holders() -> list[tuple[str, ...]]:
    return [tuple(row.holders) for row in weft.rref_report() if row.holders]


def test_a_pickle_that_calls_hides_no_reference():
    with Group(3) as members:
        for sender, owner in ((members[0], "own"), (members[2], "another's")):
            sender.call(give, owner)
            wait_until(
                lambda: members[0].call(holders) == [("worker1",)],
                lambda: f"worker1 holds it: {members[0].call(holders)}",
            )
            members[1].call(drop)
            wait_until(lambda: members[0].call(holders) == [], "nobody holds it")
        members.shutdown(timeout=20)  # torch would wait 100 s for what nobody counted
