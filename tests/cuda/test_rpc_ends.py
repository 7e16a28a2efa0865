"""What becomes of CUDA tensors that were sent when a worker is killed, or leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup, metric, wait_until_lent, wait_until_returned
from emulation import EMULATION
from waiting import wait_until
from workers import leave

ELEMENTS = 8 << 18
KEPT: dict[str, Any] = {}


def lend_to_a_stopped_worker() -> int:
    KEPT["before"] = torch.cuda.memory_allocated(0)
    KEPT["call"] = rpc.rpc_async(
        "worker1", torch.neg, args=(torch.zeros(ELEMENTS, device="cuda:0"),), timeout=0
    )
    assert metric("messages_held") == 1
    return torch.cuda.memory_allocated(0) - KEPT["before"]


def has_been_released() -> None:
    with pytest.raises(RuntimeError, match="worker1"):
        KEPT["call"].wait()
    wait_until_returned()
    wait_until(
        lambda: torch.cuda.memory_allocated(0) == KEPT["before"], "the tensor's memory is free"
    )


def test_a_killed_worker_releases_what_it_was_lent():
    with CudaGroup() as group:
        group[0].call(wait_until_lent, "worker1")
        for worker in group:
            worker.call(wait_until_returned)
        group[1].stop()
        assert group[0].call(lend_to_a_stopped_worker) >= 4 * ELEMENTS
        group[1].kill()
        group[0].call(has_been_released)
        group.end(graceful=False)


def kept_answer(n: int) -> torch.Tensor:
    KEPT[str(n)] = torch.full((100,), float(n), device="cuda:0")
    return KEPT[str(n)]


def fetch_and_leave() -> None:
    KEPT["fetched"] = [rpc.rpc_sync("worker1", kept_answer, args=(n,)) for n in range(8)]
    leave()


def leave_and_overwrite() -> None:
    leave()
    torch.stack([KEPT[str(n)].zero_() for n in range(8)]).cpu()


def is_intact() -> None:
    assert [x.sum().item() for x in KEPT["fetched"]] == [100.0 * n for n in range(8)]


@pytest.mark.skipif(EMULATION is None, reason="a GPU's copies are not that late")
def test_a_worker_leaves_when_its_memory_has_been_read():
    with CudaGroup({"EMULATED_CUDA_MAX_DELAY_US": "200000"}) as group:
        group[0].call(wait_until_lent, "worker1")
        group[0].start(fetch_and_leave)
        group[1].start(leave_and_overwrite)
        for worker in group:
            worker.result()
        group[0].call(is_intact)
