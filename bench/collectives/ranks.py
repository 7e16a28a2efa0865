"""The ranks: processes that are in a Weft group and in a Gloo group at once, and measure in turn."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from bench.collectives import operations

SIDES = ("weft", "gloo")
_BUDGET = 0.25  # seconds that one side spends on one figure in one round
Figures = dict[str, float]


class How(NamedTuple):
    """What the tensors are, beside ordinary memory that nobody writes between the calls."""

    fresh: bool = False  # each rank writes its input anew before each call, untimed
    allocate: bool = False  # Weft's come from the group's backend


def free_port() -> int:
    """A port of loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _time(
    call: Callable[[], object], count: int, group: Any, written: torch.Tensor | None
) -> float:
    """Microseconds of one call, the median of several; before each ``written`` is written anew."""
    times = []
    dist.barrier(group)
    for _ in range(count):
        if written is not None:
            written.fill_(1)
            dist.barrier(group)
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


def _make(operation: str, size: str, side: str, group: Any, how: How) -> tuple:
    if not size:
        return (lambda: dist.barrier(group)), None
    allocate = how.allocate and side == "weft"
    return operations.make(operation, operations.SIZES[size], group, allocate=allocate)


def _measure(wanted: list[tuple[str, str]], rounds: int, how: How, groups: dict[str, Any]) -> dict:
    found: dict[str, list[Figures]] = {side: [{} for _ in range(rounds)] for side in SIDES}
    for operation, size in wanted:
        name = f"{operation} {size} us" if size else f"{operation} us"
        calls = {side: _make(operation, size, side, groups[side], how) for side in SIDES}
        counts = {side: _count(calls[side][0], groups[side]) for side in SIDES}
        for number in range(rounds):
            for side in SIDES if number % 2 == 0 else SIDES[::-1]:
                call, data = calls[side]
                written = data if how.fresh else None
                found[side][number][name] = _time(call, counts[side], groups[side], written)
    return found


def _rank(
    rank: int,
    ranks: int,
    port: int,
    wanted: list[tuple[str, str]],
    rounds: int,
    how: How,
    answers: Any,
) -> None:
    torch.set_num_threads(1)
    import weft  # noqa: F401  registers the backend

    dist.init_process_group(
        "weft", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    answers.put(_measure(wanted, rounds, how, groups))
    dist.barrier()
    dist.destroy_process_group()


def gather(function: Callable[..., None], ranks: int, *arguments: Any) -> list[Any]:
    """Runs ``function(rank, ranks, *arguments, answers)`` in so many processes; their answers."""
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    processes = multiprocessing.start_processes(
        function, (ranks, *arguments, answers), nprocs=ranks, join=False
    )
    found: list[Any] = []
    ended = False
    while len(found) < ranks and not ended:
        ended = processes.join(timeout=0.2)  # raises when one failed
        while not answers.empty():
            found.append(answers.get())
    while not processes.join():
        pass
    return found


def slowest(answers: list[dict[str, list[Figures]]]) -> dict[str, list[Figures]]:
    """Each figure as the rank saw it for which it took longest.

    The root of a broadcast, and whoever only sends, runs ahead of the others.
    """
    return {
        side: [
            {name: max(answer[side][number][name] for answer in answers) for name in figures}
            for number, figures in enumerate(rounds)
        ]
        for side, rounds in answers[0].items()
    }


def run(
    ranks: int, port: int, wanted: list[tuple[str, str]], rounds: int, how: How
) -> dict[str, list[Figures]]:
    """Figures by side and round, those of the slowest rank."""
    return slowest(gather(_rank, ranks, port, wanted, rounds, how))
