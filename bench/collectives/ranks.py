"""The ranks: processes that are in a Weft group and in a Gloo group at once, and measure in turn."""

from __future__ import annotations

import ctypes
import os
import socket
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from bench import steal
from bench.collectives import operations
from bench.limits import pin
from bench.report import Figures, Judged, judge

SIDES = ("weft", "gloo")
STEAL = "steal"  # the share of each figure's round
LIMIT = "limit"  # of the machine, measured like a side: raw sockets and memcpy
_BUDGET = 0.25  # seconds that one side spends on one figure in one round


class How(NamedTuple):
    """What the tensors are, beside ordinary memory that nobody writes between the calls; and where the
    ranks run."""

    fresh: bool = False  # each rank writes its input anew before each call, untimed
    allocate: bool = False  # Weft's come from the group's backend
    pinned: bool = False  # each rank stays on a core
    sides: tuple[str, ...] = (*SIDES, LIMIT)
    build: str = ""  # the site folder that Weft must come from


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


def _trip(port: int) -> Callable[[], object]:
    """A byte from rank 0 to rank 1 and back over a Unix socket; nothing for other ranks."""
    name = f"\0weft-bench-{port}"
    if dist.get_rank() == 0:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name)
            listener.listen(1)
            dist.barrier()
            link, _ = listener.accept()
        return lambda: (link.send(b"x"), link.recv(1))
    dist.barrier()
    if dist.get_rank() > 1:
        return lambda: None
    link = socket.socket(socket.AF_UNIX)
    link.connect(name)
    return lambda: (link.recv(1), link.send(b"x"))


def _limit(operation: str, size: str, trip: Callable[[], object]) -> Callable[[], object]:
    """What the machine needs: a wake-up there and back, or one memcpy of the bytes that must move, which
    all ranks do at once."""
    count = operations.SIZES.get(size, 0)
    if count < operations.LARGE:
        return trip
    moved = int(operations.bytes_moved(operation, count, dist.get_world_size()))
    source, target = (torch.ones(moved, dtype=torch.uint8) for _ in range(2))
    # The tensors live in the lambda's defaults.
    return lambda a=source, b=target: ctypes.memmove(b.data_ptr(), a.data_ptr(), moved)


def _counters() -> tuple[int, int]:
    """Steal as rank 0 reads it, so that all repeat the same rounds."""
    read = torch.tensor(steal.counters())
    dist.broadcast(read, 0)
    return int(read[0]), int(read[1])


def _measure(
    wanted: list[tuple[str, str]], rounds: int, how: How, groups: dict[str, Any], port: int
) -> dict:
    found: dict[str, list[Figures]] = {side: [{} for _ in range(rounds)] for side in how.sides}
    found[STEAL] = [{} for _ in range(rounds)]
    trip = _trip(port)
    for operation, size in wanted:
        name = f"{operation} {size} us" if size else f"{operation} us"
        calls = {
            side: (_limit(operation, size, trip), None)
            if side == LIMIT
            else _make(operation, size, side, groups[side], how)
            for side in how.sides
        }
        counts = {side: _count(calls[side][0], groups[side]) for side in how.sides}

        def one(number: int) -> Figures:
            figures = {}
            for side in how.sides if number % 2 == 0 else how.sides[::-1]:
                call, data = calls[side]  # noqa: B023
                written = data if how.fresh else None
                figures[side] = _time(call, counts[side], groups[side], written)  # noqa: B023
            return figures

        for number in range(rounds):
            figures, lost = steal.quiet_round(lambda number=number: one(number), _counters)
            for side, time_ in figures.items():
                found[side][number][name] = time_
            found[STEAL][number][name] = lost
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
    cores = sorted(os.sched_getaffinity(0))
    pin(cores[rank % len(cores)] if how.pinned else None)
    torch.set_num_threads(1)
    import weft  # registers the backend

    if how.build and not Path(weft.__file__).is_relative_to(how.build):
        raise RuntimeError(f"{how.build} is to be measured, not the Weft of {weft.__file__}")
    dist.init_process_group(
        "weft", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    groups = {"weft": dist.group.WORLD}
    if how.sides != ("weft",):
        groups["gloo"] = groups[LIMIT] = dist.new_group(backend="gloo")
    answers.put(_measure(wanted, rounds, how, groups, port))
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


def losses(found: dict[str, list[Figures]]) -> list[float]:
    """Steal by round: the worst of its figures."""
    return [max(figures.values(), default=0.0) for figures in found[STEAL]]


def judged(found: dict[str, list[Figures]], ranks: int, pinned: bool) -> list[Judged]:
    """Weft's figures beside the limits, the aims and Gloo."""
    return judge(
        f"collectives-{ranks}",
        f"{ranks} ranks, {'pinned' if pinned else 'free'}",
        found["weft"],
        lambda name, figures: figures[f"{LIMIT} {name}"],
        [{f"{LIMIT} {name}": one[name] for name in one} for one in found[LIMIT]],
        found["gloo"],
    )
