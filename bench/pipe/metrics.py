"""What is measured, against the same micro-batching written by hand in the same process.

A side offers ``pipe(stages, chunks, mode)``, which gives a function of a batch. Figures' names end in
their unit: ``us`` is better low, ``x`` (times the speed) high. Needs torch alone, of any version.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from bench.pipe import stages

Figures = dict[str, float]
Run = Callable[[Tensor], Tensor]

STAGES = 2
TINY_CHUNKS, TINY_ROWS = 8, 4  # micro-batches, rows in each
LONG_CHUNKS = 64  # micro-batches among which what a mini-batch costs by itself hardly counts
BUSY_ROWS = 96
OVERLAPS = (2, 4, 8, 16)
STEADY_CHUNKS, STEADY_ROWS = 8, 64
STEADY_BATCHES, STEADY_PIPES = 16, 3  # mini-batches of a new Pipe; new Pipes
BUDGET = 0.6  # seconds of measuring per figure
MODES = ("never", "except_last", "always")


class Side(Protocol):
    """One of those that are compared."""

    def pipe(self, layers: list[nn.Module], chunks: int, mode: str) -> Run:
        """The layers as stages of a pipeline, one each."""


def by_hand(layers: list[nn.Module], chunks: int) -> Run:
    """What a Pipe computes, as a loop."""

    def run(batch: Tensor) -> Tensor:
        outputs = []
        for part in batch.chunk(chunks):
            for layer in layers:
                part = layer(part)
            outputs.append(part)
        return torch.cat(outputs)

    return run


def each_by_hand(
    layers: list[nn.Module], batch: Tensor, chunks: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[], None]:
    """Forward, loss and backward of one micro-batch after the other."""
    run = nn.Sequential(*layers)
    parts, targets = batch.chunk(chunks), torch.zeros(len(batch)).chunk(chunks)

    def both_ways() -> None:
        for part, target in zip(parts, targets, strict=True):
            loss(run(part), target).backward()

    return both_ways


def median_seconds(call: Callable[[], object], fewest: int = 5) -> float:
    """The median over as many calls as the budget allows."""
    for _ in range(2):  # the first ones find cold caches
        call()
    times: list[float] = []
    until = time.perf_counter() + BUDGET
    while len(times) < fewest or time.perf_counter() < until:
        times.append(seconds(call))
    return statistics.median(times)


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def there_and_back(run: Run, batch: Tensor) -> Callable[[], None]:
    """Forward and backward of a batch."""
    return lambda: run(batch).sum().backward()


def _without_graph(run: Run, batch: Tensor) -> None:
    with torch.no_grad():
        run(batch)


def _per_task(seconds: float, hand: float, chunks: int = TINY_CHUNKS) -> float:
    return (seconds - hand) / (chunks * STAGES) * 1e6


def _overheads(side: Side, layers: list[nn.Module], label: str) -> Figures:
    batch = torch.randn(TINY_CHUNKS * TINY_ROWS, stages.TINY)
    hand = by_hand(layers, TINY_CHUNKS)
    never, always = (side.pipe(layers, TINY_CHUNKS, mode) for mode in ("never", "always"))
    # With checkpointing, forward runs twice: by hand too.
    twice = lambda: (_without_graph(hand, batch), there_and_back(hand, batch)())  # noqa: E731
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "forward": (lambda: never(batch), lambda: hand(batch)),
        "with backward": (there_and_back(never, batch), there_and_back(hand, batch)),
        "with checkpointing": (there_and_back(always, batch), twice),
    }
    return {
        f"{label}, {name} us": _per_task(median_seconds(ours), median_seconds(plain))
        for name, (ours, plain) in pairs.items()
    }


def overhead(side: Side) -> Figures:
    """What a task of a tiny stage costs beside its work."""
    return _overheads(side, [stages.tiny() for _ in range(STAGES)], "a task, Python stage")


def overhead_scripted(side: Side) -> Figures:
    """The same with stages that need no Python."""
    layers: list[nn.Module] = [torch.jit.script(stages.tiny()) for _ in range(STAGES)]
    return _overheads(side, layers, "a task, ScriptModule stage")


def by_hand_costs(side: Side) -> Figures:
    """What a tiny task costs by itself: the scale for the overheads."""
    layers = [stages.tiny() for _ in range(STAGES)]
    batch = torch.randn(TINY_CHUNKS * TINY_ROWS, stages.TINY)
    hand = by_hand(layers, TINY_CHUNKS)
    return {
        "by hand, forward us": _per_task(median_seconds(lambda: hand(batch)), 0),
        "by hand, with backward us": _per_task(median_seconds(there_and_back(hand, batch)), 0),
    }


def _overlaps(side: Side, layers: list[nn.Module], batch_of: Callable[[int], Tensor], label: str):
    figures: Figures = {}
    for chunks in OVERLAPS:
        batch = batch_of(chunks)
        hand, run = by_hand(layers, chunks), side.pipe(layers, chunks, "never")
        for name, plain, piped in (
            ("forward", lambda: hand(batch), lambda: run(batch)),  # noqa: B023
            ("both ways", there_and_back(hand, batch), there_and_back(run, batch)),
        ):
            gain = median_seconds(plain, fewest=3) / median_seconds(piped, fewest=3)
            figures[f"overlap, {label}, {name}, m={chunks} x"] = gain
    return figures


def overlap_busy(side: Side) -> Figures:
    """How much faster two computing stages are side by side.

    The batch asks for its gradient: else the first stage has a product less in backward, and the ideal
    would not be that of equal stages.
    """
    layers = [stages.busy() for _ in range(STAGES)]
    return _overlaps(
        side,
        layers,
        lambda chunks: torch.randn(chunks * BUSY_ROWS, stages.WIDE, requires_grad=True),
        "busy",
    )


def overlap_asleep(side: Side) -> Figures:
    """How much faster two stages are that only take time."""
    layers: list[nn.Module] = [stages.Asleep() for _ in range(STAGES)]
    return _overlaps(side, layers, lambda chunks: torch.randn(chunks, 1), "asleep")


def steady_layers(asleep: bool) -> tuple[list[nn.Module], Tensor]:
    """Stages and a batch for mini-batch after mini-batch."""
    if asleep:
        return [stages.Asleep() for _ in range(STAGES)], torch.randn(STEADY_CHUNKS, 1)
    layers = [stages.steady() for _ in range(STAGES)]
    rows = STEADY_CHUNKS * STEADY_ROWS
    return layers, torch.randn(rows, stages.STEADY, requires_grad=True)


def steady_names(kind: str, way: str) -> tuple[str, str, str]:
    """The figures of mini-batch after mini-batch: the median, the slowest, the time of one."""
    label = f"overlap, {kind}, {way}, mini-batches 2 to {STEADY_BATCHES}, m={STEADY_CHUNKS}"
    return f"{label}, median x", f"{label}, the slowest x", f"mini-batch, {kind}, {way} ms"


def steady(side: Side) -> Figures:
    """Whether each mini-batch overlaps from the second on, as soon as a Pipe is made and for good: the
    speed-up of the median and of the slowest. A mini-batch counts as the median of the new Pipes'."""
    figures: Figures = {}
    for kind in ("busy", "asleep"):
        layers, batch = steady_layers(kind == "asleep")
        hand = by_hand(layers, STEADY_CHUNKS)
        for way in ("forward", "both ways"):
            back = way == "both ways"
            plain = there_and_back(hand, batch) if back else lambda: hand(batch)  # noqa: B023
            alone = median_seconds(plain, fewest=3)
            taken: list[list[float]] = []
            for _ in range(STEADY_PIPES):
                run = side.pipe(layers, STEADY_CHUNKS, "never")
                call = there_and_back(run, batch) if back else lambda: run(batch)  # noqa: B023
                taken.append([seconds(call) for _ in range(STEADY_BATCHES)])
            each = [statistics.median(times) for times in zip(*taken, strict=True)][1:]
            median, slowest, one = steady_names(kind, way)
            figures[median] = alone / statistics.median(each)
            figures[slowest] = alone / max(each)
            figures[one] = statistics.median(each) * 1e3
    return figures


def memory(side: Side) -> Figures:
    """Stage graphs alive after forward, and at most: what checkpointing is for. n stages, m chunks."""
    figures: Figures = {}
    for mode in MODES:
        gc.collect()
        before = stages.Graphs.alive  # what earlier pipelines keep is not this one's
        stages.Graphs.reset()
        layers: list[nn.Module] = [stages.Counted() for _ in range(STAGES)]
        run = side.pipe(layers, TINY_CHUNKS, mode)
        output = run(torch.randn(TINY_CHUNKS * TINY_ROWS, stages.TINY))
        after_forward = stages.Graphs.alive
        output.sum().backward()
        del output
        gc.collect()
        figures[f"graphs after forward, {mode} count"] = after_forward - before
        figures[f"graphs at most, {mode} count"] = stages.Graphs.most - before
        figures[f"graphs after backward, {mode} count"] = stages.Graphs.alive - before
    return figures


METRICS: dict[str, Callable[[Side], Figures]] = {
    "by_hand": by_hand_costs,
    "overhead": overhead,
    "overhead_scripted": overhead_scripted,
    "overlap_busy": overlap_busy,
    "overlap_asleep": overlap_asleep,
    "steady": steady,
    "memory": memory,
}
