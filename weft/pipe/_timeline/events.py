"""The tasks of a pipeline and when they ran, by mini-batch, with the figures that follow."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

#: Work of a stage, by kind. Copies between devices run beside it, on streams of their own.
WORK = ("forward", "recompute", "backward", "weights")


class Event(NamedTuple):
    """One task. Nanoseconds of CLOCK_MONOTONIC, of the process that records."""

    stage: int
    micro_batch: int
    kind: str  # one of WORK, or "copy"
    begin: int
    end: int
    thread: int  # 0 is the calling thread, 1.. are the engine's


@dataclasses.dataclass(frozen=True)
class Figures:
    """How well the stages of one mini-batch were used."""

    stages: int
    micro_batches: int
    seconds: float  #: from the first task to the last, without the pause before backward
    bubble: float  #: the share of that time in which a stage waits, all stages together
    ideal_bubble: float  #: the schedule's on paper, if all stages take equally long
    busy: tuple[
        float, ...
    ]  #: by lane (a stage, or a worker): the share of the time in which it works
    mean_ms: dict[str, float]  #: by kind: the mean time of a task

    def __str__(self) -> str:
        busy = ", ".join(f"{share:.0%}" for share in self.busy)
        tasks = ", ".join(f"{kind} {ms:.3g} ms" for kind, ms in self.mean_ms.items())
        return (
            f"{self.stages} stages, {self.micro_batches} micro-batches: {self.seconds * 1e3:.3g} ms, "
            f"bubble {self.bubble:.1%} (ideal {self.ideal_bubble:.1%}); busy {busy}; tasks {tasks}"
        )


class RecordedMiniBatch:
    """The tasks of one call of the Pipe and of its backward pass, in order of their beginning.

    A lane does one task at a time: here a stage, which has a thread of its own.
    """

    schedule = "GPipe"  #: its name

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = tuple(sorted(events, key=lambda event: event.begin))
        work = [event for event in self.events if event.kind in WORK]
        self.stages = 1 + max(event.stage for event in work)
        self.micro_batches = 1 + max(event.micro_batch for event in work)
        self.forward = tuple(event for event in work if event.kind == "forward")
        self.backward = tuple(event for event in work if event.kind != "forward")

    @property
    def lanes(self) -> int:
        """How many tasks may run at the same time."""
        return self.stages

    def lane(self, event: Event) -> int:
        """Where it runs."""
        return event.stage

    def turn(self, stage: int) -> int:
        """How many stages of the same lane come before."""
        return 0

    @property
    def ideal_bubble(self) -> float:
        """(S - 1) / (M + S - 1): GPipe's, if all tasks take equally long."""
        return (self.stages - 1) / (self.micro_batches + self.stages - 1)

    @property
    def phases(self) -> list[tuple[Event, ...]]:
        """Forward, and backward with recomputation: each with something in it."""
        return [phase for phase in (self.forward, self.backward) if phase]

    def figures(self) -> Figures:
        """Measures this mini-batch."""
        span = sum(max(e.end for e in phase) - min(e.begin for e in phase) for phase in self.phases)
        busy = [0] * self.lanes
        by_kind: dict[str, list[int]] = {}
        for event in (*self.forward, *self.backward):
            busy[self.lane(event)] += event.end - event.begin
            by_kind.setdefault(event.kind, []).append(event.end - event.begin)
        kinds = [kind for kind in WORK if kind in by_kind]
        shares = tuple(time / max(span, 1) for time in busy)
        return Figures(
            stages=self.stages,
            micro_batches=self.micro_batches,
            seconds=span / 1e9,
            bubble=1 - sum(shares) / self.lanes,
            ideal_bubble=self.ideal_bubble,
            busy=shares,
            mean_ms={kind: statistics.fmean(by_kind[kind]) / 1e6 for kind in kinds},
        )

    def ideal(self) -> RecordedMiniBatch:
        """The same tasks on the schedule as it is on paper: stages of one length, nothing in between.

        Tasks of a kind last as long as they did on the mean; the pause between forward and backward,
        in which the caller computes the loss, is what it was.
        """
        work = (*self.forward, *self.backward)
        means = self.figures().mean_ms
        lasting = {(event.kind, event.micro_batch): means[event.kind] * 1e6 for event in work}
        pause = 0
        if len(self.phases) == 2:
            pause = self.backward[0].begin - max(event.end for event in self.forward)
        begin = self.events[0].begin
        return RecordedMiniBatch(gpipe(self.stages, self.micro_batches, lasting, begin, pause))


def gpipe(
    stages: int,
    micro_batches: int,
    lasting: Mapping[tuple[str, int], float],
    begin: float = 0,
    pause: float = 0,
) -> Iterator[Event]:
    """GPipe's ideal schedule (Huang et al., 2019, figure 2c), to compare a run with.

    All forwards, a pause, then recomputation and backward in reverse order. A task begins when its
    stage and its input are ready; copies cost nothing. `lasting[kind, micro_batch]` is its length on
    every stage; a missing task is skipped.
    """
    there = (("forward",), range(stages), range(micro_batches))
    back = (("recompute", "backward"), range(stages)[::-1], range(micro_batches)[::-1])
    for kinds, ordered_stages, indices in (there, back):
        free, ready = [begin] * stages, [begin] * micro_batches
        for index in indices:
            for stage in ordered_stages:
                now = max(free[stage], ready[index])
                for kind in kinds:
                    end = now + lasting.get((kind, index), 0)
                    if (kind, index) in lasting:
                        yield Event(stage, index, kind, round(now), round(end), 0)
                    now = end
                free[stage] = ready[index] = now
        begin = max(free) + pause


def mini_batches(events: Iterable[Event]) -> list[RecordedMiniBatch]:
    """Cuts a recording at every forward of micro-batch 0 on stage 0."""
    groups: list[list[Event]] = []
    for event in sorted(events, key=lambda event: event.begin):
        first = (event.kind, event.stage, event.micro_batch) == ("forward", 0, 0)
        if first or not groups:
            groups.append([])
        groups[-1].append(event)
    whole = [group for group in groups if any(event.kind == "forward" for event in group)]
    return [RecordedMiniBatch(group) for group in whole]
