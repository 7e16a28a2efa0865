"""The current device and streams that a served function leaves behind are not those of the next one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup
from devices import BOTH, CROSSED, SECOND, need_two


def choose() -> int:
    for device in BOTH:
        torch.cuda.set_stream(torch.cuda.Stream(device))
    torch.cuda.set_device(SECOND)
    return torch.cuda.current_device()


def chosen() -> tuple[int, list[bool]]:
    """The device, and which streams are the default ones."""
    device = torch.cuda.current_device()
    default = [torch.cuda.current_stream(d) == torch.cuda.default_stream(d) for d in BOTH]
    return device, default


def choose_and_look(default: bool) -> None:
    for _ in range(4):
        assert rpc.rpc_sync("worker1", choose) == SECOND
        assert rpc.rpc_sync("worker1", chosen) == (0, [default, default])


@need_two("one of them is chosen")
@pytest.mark.parametrize("maps", [{}, CROSSED], ids=["no device map", "device map"])
def test_a_function_begins_on_the_first_device(maps):
    """On the default streams, or with a map on those of the call. The first call initialises CUDA."""
    with CudaGroup(maps=maps, num_worker_threads=1) as group:
        group[0].call(choose_and_look, not maps)
        group.end()
