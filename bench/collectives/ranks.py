"""The ranks: processes that are in a Weft group and in a Gloo group at once, and measure in turn."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from bench.collectives import operations

SIDES = ("weft", "gloo")
_BUDGET = 0.25  # seconds that one side spends on one figure in one round
Figures = dict[str, float]


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _time(call: Callable[[], object], count: int, group: Any) -> float:
    """Microseconds of one call, the median of several."""
    times = []
    dist.barrier(group)
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _count(call: Callable[[], object], group: Any) -> int:
    """How many calls fit the budget; the same on all ranks."""
    call()
    dist.barrier(group)
    start = time.perf_counter()
    call()
    seconds = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(seconds, dist.ReduceOp.MAX, group=group)
    return int(min(400, max(5, _BUDGET / max(seconds.item(), 1e-6))))


def _measure(wanted: list[tuple[str, str]], rounds: int, groups: dict[str, Any]) -> dict:
    found: dict[str, list[Figures]] = {side: [{} for _ in range(rounds)] for side in SIDES}
    for operation, size in wanted:
        name = f"{operation} {size} us" if size else f"{operation} us"
        calls = {
            side: (
                operations.make(operation, operations.SIZES[size], groups[side])
                if size
                else lambda side=side: dist.barrier(groups[side])
            )
            for side in SIDES
        }
        counts = {side: _count(calls[side], groups[side]) for side in SIDES}
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                found[side][number][name] = _time(calls[side], counts[side], groups[side])
    return found


def _rank(
    rank: int, ranks: int, port: int, wanted: list[tuple[str, str]], rounds: int, answers: Any
) -> None:
    torch.set_num_threads(1)
    import weft  # noqa: F401  registers the backend

    dist.init_process_group(
        "weft", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    found = _measure(wanted, rounds, groups)
    if rank == 0:
        answers.put(found)
    dist.barrier()
    dist.destroy_process_group()


def run(ranks: int, port: int, wanted: list[tuple[str, str]], rounds: int) -> dict:
    """Figures by side and round, as rank 0 saw them."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    processes = multiprocessing.start_processes(
        _rank, (ranks, port, wanted, rounds, answers), nprocs=ranks, join=False
    )
    while answers.empty() and not processes.join(timeout=0.2):
        pass
    found = answers.get()
    processes.join()
    return found
