"""Ranks of a process group as real processes (workers.py of the RPC tests), told what to run.

with Ranks(3) as ranks:
    ranks.all(function, 1)      # on every rank at once; their results, by rank
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from workers import BOUND, WorkerError, Workers

# What makes a default group on one host take each of its two ways.
PATHS = {"shared memory": {}, "messages": {"WEFT_SHARED_MEMORY": "0"}}


class Ranks(Workers):
    """Workers that have called ``init_process_group("weft")``."""

    def __init__(
        self,
        count: int,
        environment: Mapping[str, str | None] | None = None,
        timeout: float = 30.0,
        backend: str = "weft",
        meeting: str | None = None,
    ) -> None:
        super().__init__(count, environment)
        with self.closed_on_failure():
            for rank, worker in enumerate(self):
                worker.start(meet, rank, count, meeting or self.meeting, timeout, backend)
            for worker in self:
                worker.result()

    def all_fail(
        self, function: Callable[..., Any], *arguments: Any, timeout: float = BOUND
    ) -> list[WorkerError]:
        """The same for a function that must raise everywhere; what each rank raised."""
        for worker in self:
            worker.start(function, *arguments)
        return [worker.failure(timeout) for worker in self]


# What ranks run.


def meet(rank: int, world: int, meeting: str, timeout: float, backend: str) -> int:
    import torch
    import torch.distributed as dist

    import weft  # noqa: F401

    torch.set_num_threads(1)
    dist.set_debug_level_from_env()  # torch was imported before this worker had its environment
    dist.init_process_group(
        backend,
        init_method=meeting,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout),
    )
    return os.getpid()


def leave() -> None:
    import torch.distributed as dist

    dist.destroy_process_group()


def path_of_default_group() -> str:
    import torch
    import torch.distributed as dist

    return dist.group.WORLD._get_backend(torch.device("cpu")).path
