"""Worker processes with CUDA devices: their maps are crossed where there are two, and each ends as a
process of its own does, so that what the emulation found in it is its exit status."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed.nn  # both sides of a RemoteModule need it
import torch.distributed.rpc as rpc
from devices import CROSSED
from forgetting import forget
from waiting import wait_until
from workers import Group, Worker, WorkerDied, leave

forget()  # workers import this module, as the tests do


class CudaGroup(Group):
    """Two workers: what is on a device of one arrives on the other device of the other, unless `maps`
    says otherwise. `own_map` is for a worker's calls to itself."""

    def __init__(
        self,
        environment: Mapping[str, str | None] | None = None,
        maps: Mapping[int, int] = CROSSED,
        own_map: Mapping[int, int] | None = None,
        **options: Any,
    ) -> None:
        own = [{f"worker{rank}": dict(own_map)} if own_map else {} for rank in range(2)]
        per_rank = [
            {"device_maps": {f"worker{1 - rank}": dict(maps), **own[rank]}} for rank in range(2)
        ]
        environment = {"WEFT_LOG_LEVEL": "info", **(environment or {})}
        super().__init__(2, environment, per_rank=per_rank, **options)

    def end(self, graceful: bool = True) -> None:
        """Ends those that live; each must have nothing to report."""
        alive = [worker for worker in self if not worker.killed]
        for worker in alive:
            worker.start(leave_and_exit, graceful)
        for worker in alive:
            assert exit_code(worker) == 0, worker.output()


def exit_code(worker: Worker) -> int | None:
    try:
        worker.result()
    except WorkerDied:
        return worker.exit_code
    raise AssertionError(f"{worker.label} has not ended")


# What workers run.


def leave_and_exit(graceful: bool) -> None:
    """Ends the process by C's exit(), which a forked worker's end is not."""
    leave(graceful)
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    ctypes.CDLL(None).exit(0)


def metric(name: str) -> int:
    from torch.distributed.rpc import api

    return int(api._get_current_rpc_agent().get_metrics()[f"agent.device_{name}"])


def bounce(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x + 1, metric("bytes_staged")


def wait_until_lent(peer: str) -> None:
    """Calls until nothing goes through host memory any more, in both directions."""

    def lends() -> bool:
        staged = metric("bytes_staged")
        theirs = [
            rpc.rpc_sync(peer, bounce, args=(torch.zeros(8, device=f"cuda:{device}"),))[1]
            for device in [*range(torch.cuda.device_count())] * 2
        ]
        return metric("bytes_staged") == staged and theirs[-1] == theirs[0]

    wait_until(lends, f"tensors for {peer} are lent")


def wait_until_returned(count: int = 0) -> None:
    wait_until(lambda: metric("messages_held") == count, "what was lent is returned")
