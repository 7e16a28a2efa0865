"""GPipe's ideal schedule (Huang et al., 2019, figure 2c), to compare a run with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Task(NamedTuple):
    """A task with its time, in the unit of the durations it was made of."""

    stage: int
    micro_batch: int
    kind: str
    begin: float
    end: float


def ideal_bubble(stages: int, micro_batches: int) -> float:
    """The share of time in which a stage waits if all tasks take equally long."""
    return (stages - 1) / (micro_batches + stages - 1)


def gpipe(
    stages: int,
    micro_batches: int,
    lasting: Mapping[tuple[str, int], float],
    begin: float = 0,
    pause: float = 0,
) -> Iterator[Task]:
    """All forwards, a pause, then recomputation and backward in reverse order.

    A task begins when its stage and its input are ready; copies cost nothing.
    `lasting[kind, micro_batch]` is its length on every stage; a missing task is skipped.
    """
    free, ready = [begin] * stages, [begin] * micro_batches
    yield from _phase(("forward",), range(stages), range(micro_batches), lasting, free, ready)
    if not any(kind == "backward" for kind, _ in lasting):
        return
    turn = max(free) + pause
    free, ready = [turn] * stages, [turn] * micro_batches
    kinds = ("recompute", "backward")
    order = range(micro_batches - 1, -1, -1)
    yield from _phase(kinds, range(stages - 1, -1, -1), order, lasting, free, ready)


def _phase(
    kinds: tuple[str, ...],
    stages: range,
    micro_batches: range,
    lasting: Mapping[tuple[str, int], float],
    free: list[float],
    ready: list[float],
) -> Iterator[Task]:
    """Sends each micro-batch through the stages, and updates when each is `free` and `ready`."""
    for index in micro_batches:
        for stage in stages:
            now = max(free[stage], ready[index])
            for kind in kinds:
                if (kind, index) in lasting:
                    end = now + lasting[kind, index]
                    yield Task(stage, index, kind, now, end)
                    now = end
            free[stage] = ready[index] = now
