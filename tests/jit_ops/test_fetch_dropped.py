"""torch.ops.weft.fetch and fetch_async of a reference that this worker has dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.rpc as rpc
from gate import open_gate, wait_for_gate
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


@pytest.mark.parametrize("later", [True, False])
def test_a_dropped_reference_is_refused_at_once(group, later):
    assert "was dropped here" in group[0].fails(fetch_a_dropped_one, later, timeout=10).message
