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
BUSY_ROWS = 96
OVERLAPS = (2, 4, 8, 16)
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


def median_seconds(call: Callable[[], object], fewest: int = 5) -> float:
    """The median over as many calls as the budget allows."""
    for _ in range(6):  # a Pipe tries with threads and without before it settles
        call()
    times: list[float] = []
    until = time.perf_counter() + BUDGET
    while len(times) < fewest or time.perf_counter() < until:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def there_and_back(run: Run, batch: Tensor) -> Callable[[], None]:
    """Forward and backward of a batch."""
    return lambda: run(batch).sum().backward()


def _without_graph(run: Run, batch: Tensor) -> None:
    with torch.no_grad():
        run(batch)


def _per_task(seconds: float, hand: float) -> float:
    return (seconds - hand) / (TINY_CHUNKS * STAGES) * 1e6


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
    "memory": memory,
}
