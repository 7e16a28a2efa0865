"""How the ranks of one test start: forked from a warm process, or spawned anew; and how they must end."""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import signal
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.multiprocessing
from torch.testing._internal.common_distributed import TEST_SKIPS, MultiProcessTestCase

from conformance import cuda_in_forks
from conformance.cases import FORK, FORK_FULL_EXIT, SPAWN
from conformance.full_exit import FullExitProcess

_SKIP_CODES = {skip.exit_code for skip in TEST_SKIPS.values()}

_PROCESSES = {
    FORK: torch.multiprocessing.get_context("fork").Process,
    FORK_FULL_EXIT: FullExitProcess,
    SPAWN: torch.multiprocessing.get_context("spawn").Process,
}


class RankLauncher(MultiProcessTestCase):
    """Starts `world_size` ranks and is strict about every one of them.

    PyTorch's own check looks at the exit code of rank 0 and for failed assertions in the others; a
    rank that crashed goes unnoticed. Here each rank has to exit with 0 (or skip).
    """

    ranks_start_by = FORK  # `cases.execute` sets what the case says

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        self._start_processes(_PROCESSES[self.ranks_start_by])

    @classmethod
    def _run(cls, *args: Any, **kwargs: Any) -> None:
        """Entered in each rank: lets the runner ask a hung rank where it is."""
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        _keep_process_groups()
        try:
            super()._run(*args, **kwargs)
        finally:
            cuda_in_forks.end_if_races()

    def _check_return_codes(self, *args: Any, **kwargs: Any) -> None:
        super()._check_return_codes(*args, **kwargs)
        bad = {
            rank: process.exitcode
            for rank, process in enumerate(self.processes)
            if process.exitcode != 0 and process.exitcode not in _SKIP_CODES
        }
        if bad:
            told = ", ".join(f"rank {rank}: {_say(code)}" for rank, code in bad.items())
            raise RuntimeError(f"the test's assertions held, but ranks died: {told}")


def _keep_process_groups() -> None:
    """Makes every process group of this rank live as long as the rank.

    A DDP module whose process group was destroyed is its last owner. When Python frees the module,
    the GIL is held while ProcessGroupGloo joins its threads, and one of them may be waiting for
    the GIL to free a tensor: a deadlock within torch, seen with either RPC backend.
    """
    for name in ("init_process_group", "new_group"):
        setattr(dist, name, _keeping_its_group(getattr(dist, name)))


def _keeping_its_group(upstream: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(upstream)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        result = upstream(*args, **kwargs)
        for group in (result, dist.group.WORLD):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # never given back
        return result

    return keeping


def _say(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
