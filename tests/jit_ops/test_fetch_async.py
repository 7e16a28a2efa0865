"""torch.ops.weft.fetch_async: the value of an RRef, without waiting for it here."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed.rpc as rpc
from gate import open_gate, wait_for_gate
from torch.distributed.rpc import RRef
from waiting import wait_until
from workers import Group

import weft


@pytest.fixture(scope="module")
def group():
    with Group(2) as members:
        members[1].call(publish)
        yield members
        members.shutdown()


# What workers run.


def late(x: torch.Tensor) -> torch.Tensor:
    wait_for_gate()
    return x + 1


def publish() -> None:
    weft.publish("late", late)


def fetch_two() -> float:
    """Begins two fetches of values that are not there yet; how long that takes."""

    @torch.jit.script
    def begin(
        x: torch.Tensor,
    ) -> tuple[torch.jit.Future[torch.Tensor], torch.jit.Future[torch.Tensor]]:
        like: list[torch.Tensor] = []
        args: list[Any] = [x]
        first = torch.ops.weft.remote("worker1", "late", args, like)
        second = torch.ops.weft.remote("worker1", "late", args, like)
        return torch.ops.weft.fetch_async(first), torch.ops.weft.fetch_async(second)

    began = time.monotonic()
    values = begin(torch.ones(2))
    took = time.monotonic() - began
    rpc.rpc_sync("worker1", open_gate)
    assert [value.wait().tolist() for value in values] == [[2, 2], [2, 2]]
    return took


def call_in_a_callback() -> list[float]:
    @torch.jit.script
    def begin(x: torch.Tensor) -> torch.jit.Future[torch.Tensor]:
        like: list[torch.Tensor] = []
        args: list[Any] = [x]
        return torch.ops.weft.fetch_async(torch.ops.weft.remote("worker1", "late", args, like))

    value = begin(torch.ones(2))
    negated = value.then(lambda done: rpc.rpc_sync("worker1", torch.neg, (done.value(),)))
    rpc.rpc_sync("worker1", open_gate)
    return negated.wait().tolist()


def drop_while_fetched() -> list[float]:
    @torch.jit.script
    def fetch(
        x: torch.Tensor,
    ) -> tuple[RRef[torch.Tensor], torch.jit.Future[torch.Tensor]]:
        like: list[torch.Tensor] = []
        args: list[Any] = [x]
        there = torch.ops.weft.remote("worker1", "late", args, like)
        value = torch.ops.weft.fetch_async(there)
        torch.ops.weft.drop(there)
        return there, value

    @torch.jit.script
    def fetch_again(there: RRef[torch.Tensor]) -> torch.Tensor:
        return torch.ops.weft.fetch(there)

    there, value = fetch(torch.ones(2))
    with pytest.raises(RuntimeError, match="was dropped here"):
        fetch_again(there)
    print("it is dropped", flush=True)
    found = value.wait().tolist()
    with pytest.raises(RuntimeError, match="was dropped here"):
        fetch_again(there)
    return found


def owned() -> int:
    return sum(row.owned for row in weft.rref_report())


def fetch_a_dropped_one(later: bool) -> torch.Tensor:
    @torch.jit.script
    def fetch(x: torch.Tensor, later: bool) -> torch.Tensor:
        like: list[torch.Tensor] = []
        args: list[Any] = [x]
        there = torch.ops.weft.remote("worker1", "late", args, like)
        torch.ops.weft.drop(there)
        if later:
            return torch.jit._wait(torch.ops.weft.fetch_async(there))
        return torch.ops.weft.fetch(there)

    rpc.rpc_sync("worker1", open_gate)
    return fetch(torch.ones(2), later)


def test_fetches_overlap(group):
    assert group[0].call(fetch_two) < 5


def test_a_callback_may_call(group):
    assert group[0].call(call_in_a_callback) == [-2, -2]


def test_a_reference_that_is_being_fetched_is_dropped_afterwards():
    """The owner's only worker is busy: a deletion, which needs none, would overtake the fetch."""
    with Group(2, per_rank=[{}, {"num_worker_threads": 1}]) as members:
        members[1].call(publish)
        members[0].start(drop_while_fetched)
        members[0].wait_for_output("it is dropped")
        members[1].call(open_gate)
        assert members[0].result() == [2, 2]
        wait_until(lambda: members[1].call(owned) == 0, "the owner has released the value")
        members.shutdown()


@pytest.mark.parametrize("later", [True, False])
def test_a_dropped_reference_is_refused_at_once(group, later):
    assert "was dropped here" in group[0].fails(fetch_a_dropped_one, later, timeout=10).message
