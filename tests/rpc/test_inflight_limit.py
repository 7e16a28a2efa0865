"""max_inflight_bytes: what a peer's requests may take here until they are answered."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
import torch.distributed.rpc as rpc
from waiting import wait_for, wait_until
from workers import Group

import weft


def echo(value: Any) -> Any:
    return value


def over_the_limit() -> str:
    try:
        rpc.rpc_sync("worker1", echo, args=(torch.ones(1 << 20),), timeout=20)
    except RuntimeError as error:
        assert rpc.rpc_sync("worker1", echo, args=(5,)) == 5
        return str(error)
    return "answered"


def test_more_than_one_peer_may_hold_here_is_refused():
    """max_inflight_bytes refuses one request and keeps the link."""
    with Group(2, per_rank=[{}, {"max_inflight_bytes": 1 << 20}]) as members:
        text = members[0].call(over_the_limit)
        assert "max_inflight_bytes (1048576)" in text
        assert "RESOURCE_EXHAUSTED" in text
        assert "worker 'worker1' (rank 1)" in text
        members.shutdown()


_LATER: list[torch.futures.Future] = []


@rpc.functions.async_execution
def answered_later(tensor: torch.Tensor) -> torch.futures.Future:
    _LATER.append(torch.futures.Future())
    return _LATER[-1]


def answer_now() -> int:
    for future in _LATER:
        future.set_result(True)
    return len(_LATER)


def waiting() -> int:
    return len(_LATER)


def begin_two_and_a_third() -> tuple[str, list[bool]]:
    arguments = (torch.ones(100_000),)
    first = [rpc.rpc_async("worker1", answered_later, arguments, timeout=20) for _ in range(2)]
    wait_for(lambda: rpc.rpc_sync("worker1", waiting), 2, "calls that wait")
    try:
        rpc.rpc_sync("worker1", answered_later, arguments, timeout=20)
    except RuntimeError as error:
        text = str(error)
    else:
        text = "answered"
    assert rpc.rpc_sync("worker1", answer_now) == 2
    return text, [future.wait() for future in first]


def test_what_waits_for_its_answer_is_held():
    with Group(2, per_rank=[{}, {"max_inflight_bytes": 1 << 20}]) as members:
        text, answers = members[0].call(begin_two_and_a_third)
        assert "max_inflight_bytes (1048576)" in text
        assert answers == [True, True]
        members.shutdown()


_KEPT: list[Any] = []


def keep_remote() -> Any:
    _KEPT.append(rpc.remote("worker1", torch.neg, args=(torch.ones(1),)))
    assert _KEPT[-1].to_here().item() == -1


def held_elsewhere() -> int:
    return sum(bool(row.holders) for row in weft.rref_report() if row.owner == "worker1")


def fill_and_drop() -> None:
    """Holds nearly all that the limit allows, and drops a reference meanwhile."""
    _KEPT.append(rpc.rpc_async("worker1", answered_later, (torch.ones((1 << 18) - 700),)))
    del _KEPT[0]


def refused() -> None:
    with pytest.raises(RuntimeError, match="max_inflight_bytes"):
        rpc.rpc_sync("worker1", echo, args=(torch.ones(1000),))


def test_a_full_peer_still_counts_references():
    """torch gives up on a refused deletion after some tries, and the value would stay."""
    with Group(2, per_rank=[{}, {"max_inflight_bytes": 1 << 20}]) as members:
        members[0].call(keep_remote)
        members[0].call(fill_and_drop)
        wait_until(lambda: members[1].call(waiting) == 1, "a call waits")
        members[0].call(refused)
        wait_until(lambda: members[1].call(held_elsewhere) == 0, "the reference is gone")
        assert members[1].call(answer_now) == 1
        members.shutdown()


def fetch(rref: Any) -> str:
    try:
        return str(rref.to_here(timeout=60))
    except RuntimeError as error:
        return str(error)


def pass_one_on() -> None:
    rref = rpc.remote("worker1", torch.neg, args=(torch.ones(1 << 20),))
    _KEPT.append(rpc.rpc_async("worker2", fetch, args=(rref,), timeout=60))


def what_it_gave() -> str:
    return _KEPT.pop().wait()


def test_who_waits_for_a_refused_creation_is_told():
    limited = {"max_inflight_bytes": 1 << 20}
    with Group(3, per_rank=[{}, limited, {}]) as members:
        for _ in range(3):
            # Else the refusal may come before the reference goes on, which torch then refuses.
            members[1].signal(signal.SIGSTOP)
            members[0].call(pass_one_on)
            members[1].signal(signal.SIGCONT)
            text = members[0].call(what_it_gave, timeout=20)
            assert "max_inflight_bytes" in text, text
        members.shutdown()
