"""At the driver: the timeline of a pipeline, of the tasks that each worker has recorded by its own clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.pipe._timeline.events import Event, RecordedMiniBatch
from weft.pipe._timeline.recording import Timeline
from weft.pipe._workers.job import Done, StagePlace
from weft.pipe._workers.schedule import (
    Plan,
    Task,
    needs,
    splits_backward,
    worker_of,
    workers_of,
)


class WorkerMiniBatch(RecordedMiniBatch):
    """A mini-batch whose lanes are workers, which run their tasks in a planned order."""

    def __init__(
        self, events: list[Event], schedule: str, plan: Plan, places: Sequence[Sequence[str]]
    ) -> None:
        super().__init__(events)
        self.schedule = schedule
        self._plan = plan
        self._workers = list(plan)
        self._places = places  # the workers of each stage

    @property
    def lanes(self) -> int:
        return len(self._workers)

    def lane(self, event: Event) -> int:
        return self._workers.index(worker_of(self._places[event.stage], event.micro_batch))

    def turn(self, stage: int) -> int:
        own = set(self._places[stage])
        return sum(not own.isdisjoint(others) for others in self._places[:stage])

    @property
    def phases(self) -> list[tuple[Event, ...]]:
        """One: the workers change from forward to backward each at its own time."""
        return [self.events]

    @property
    def ideal_bubble(self) -> float:
        """The share of the shortest run of the plan in which a worker waits."""
        ideal = self._on_paper()
        span = max(event.end for event in ideal) - min(event.begin for event in ideal)
        return 1 - sum(event.end - event.begin for event in ideal) / (max(span, 1) * self.lanes)

    def ideal(self) -> RecordedMiniBatch:
        return WorkerMiniBatch(self._on_paper(), self.schedule, self._plan, self._places)

    def _on_paper(self) -> list[Event]:
        """The mini-batch if each worker ran its tasks in order, each as soon as its needs are met."""
        means = self._mean_lengths()
        start = self.events[0].begin
        ends: dict[Task, float] = {}
        free = dict.fromkeys(self._plan, float(start))
        left = {worker: list(tasks) for worker, tasks in self._plan.items()}
        planned = {
            task for tasks in left.values() for task in tasks
        }  # a backward alone has no forward
        events = []
        while any(left.values()):
            for worker, tasks in left.items():
                while tasks and planned.intersection(needs(tasks[0], self.stages)) <= ends.keys():
                    task = tasks.pop(0)
                    ready = [ends[need] for need in needs(task, self.stages) if need in planned]
                    begin = max([free[worker], *ready])
                    free[worker] = ends[task] = begin + means[self._alike(task)]
                    events.append(
                        Event(
                            task.stage,
                            task.micro_batch,
                            task.kind,
                            round(begin),
                            round(ends[task]),
                            0,
                        )
                    )
        return events

    def _mean_lengths(self) -> dict[tuple[str, bool], float]:
        lengths: dict[tuple[str, bool], list[int]] = {}
        for event in self.events:
            lengths.setdefault(self._alike(event), []).append(event.end - event.begin)
        return {kind: sum(found) / len(found) for kind, found in lengths.items()}

    def _alike(self, task: Task | Event) -> tuple[str, bool]:
        """Tasks that do the same work: a backward may leave some for later."""
        return task.kind, splits_backward(self.schedule, task.stage)


class WorkerRecording:
    """What is recorded of a Pipe on workers. Times are those of the hosts' processors.

    Args:
        schedule: the Pipe's.
        places: of its stages.
        offset: how many nanoseconds a worker's clock is ahead.
    """

    def __init__(
        self, schedule: str, places: Sequence[StagePlace], offset: Callable[[str], int]
    ) -> None:
        self._schedule = schedule
        self._places = [place.workers for place in places]
        self.timeline = Timeline(workers_of(self._places))
        self._offsets = {worker: offset(worker) for worker in self.timeline.lanes}
        self._batches: list[RecordedMiniBatch] = []

    def add(self, plan: Plan, tasks: Mapping[str, Sequence[Done]]) -> None:
        """Takes what each worker recorded of a mini-batch."""
        events = [
            Event(
                done.task.stage,
                done.task.micro_batch,
                done.task.kind,
                done.begin - self._offsets[worker],
                done.end - self._offsets[worker],
                0,
            )
            for worker, found in tasks.items()
            for done in found
        ]
        self._batches.append(WorkerMiniBatch(events, self._schedule, plan, self._places))

    def close(self) -> None:
        """Ends it: the timeline can be used."""
        self.timeline.close(self._batches)
