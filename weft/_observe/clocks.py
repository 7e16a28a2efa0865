"""How far apart the clocks of two workers are."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed.rpc as rpc

_EXCHANGES = 16  # of which the fastest counts


def clock_offset(
    worker: str,
    clock: Callable[[], int] = time.monotonic_ns,
    there: Callable[[], int] | None = None,
) -> int:
    """How many nanoseconds a worker's clock is ahead of this process's.

    The fastest of some exchanges counts; the error is at most its round trip. Clocks that may be the
    same, as far as that tells, are taken as the same: those of one host are. ``there`` asks the
    worker; without it ``clock`` is called there.
    """
    if worker == rpc.get_worker_info().name:
        return 0
    found = []
    for _ in range(_EXCHANGES):
        begin = clock()
        time_there = rpc.rpc_sync(worker, clock) if there is None else there()
        end = clock()
        found.append((end - begin, time_there - (begin + end) // 2))
    round_trip, offset = min(found)
    return offset if abs(offset) > round_trip // 2 else 0
