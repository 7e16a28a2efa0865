"""Puts what the workers recorded into one trace of the "Trace Event Format"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Event = dict[str, Any]
_Numbers = dict[tuple[int, str, Any], int]  # of arrows: Perfetto wants numbers for their ids

_RANGE = "weft::rpc "
_PROCESSES = 1000  # numbers of the trace for the processes that one worker's profile has
_OF_PROCESS = ("process_name", "process_sort_index")
_PIPELINE = 1  # the thread that has a pipeline's steps: no thread of the system has this number


@dataclasses.dataclass(frozen=True)
class Recorded:
    """What one worker recorded. Times are its own clock's."""

    name: str
    rank: int
    host: str
    pid: int
    profile: dict[str, Any]
    made: list[Event]
    served: list[Event]
    steps: list[Event]
    error: str = ""
    offset: int = 0  # nanoseconds by which its clock is ahead


def merged(parts: Sequence[Recorded]) -> dict[str, Any]:
    """One trace, whose time 0 is its first event's; in the order of time."""
    origin = min(_begin(part) - part.offset for part in parts)
    numbers: _Numbers = {}
    workers = {part.rank: _Worker(part, origin, numbers) for part in parts}
    events = [event for worker in workers.values() for event in worker.events()]
    for worker in workers.values():
        events += worker.arrows(workers)
    return {"traceEvents": sorted(events, key=_order), "displayTimeUnit": "ms"}


def _order(event: Event) -> tuple[float, float]:
    """Of those that begin together the outermost range is first, and an arrow is behind its range."""
    return event.get("ts", -1), -event.get("dur", 0)


def _begin(part: Recorded) -> int:
    """Of its first event, on its own clock."""
    times = [one["ts"] for one in _events(part) if one.get("ph") == "X"]
    return _base(part) + int(min(times, default=0) * 1e3)


def _events(part: Recorded) -> list[Event]:
    """Without those of the profiler itself, whose process is a text."""
    return [one for one in part.profile["traceEvents"] if isinstance(one.get("pid"), int)]


def _base(part: Recorded) -> int:
    return int(part.profile.get("baseTimeNanoseconds", 0))


class _Worker:
    def __init__(self, part: Recorded, origin: int, numbers: _Numbers) -> None:
        self.part = part
        self._numbers = numbers
        self._since = part.offset + origin  # of the trace, on this worker's clock
        self._own = (part.rank + 1) * _PROCESSES  # the trace's number for the worker's process
        self._processes: dict[Any, int] = {part.pid: self._own}
        later = (_base(part) - self._since) / 1e3
        self._events = [self._moved(one, later) for one in _events(part)]
        self._ranges: dict[tuple[Any, str], list[Event]] = {}  # by thread and name
        for one in self._events:
            if one["name"].startswith(_RANGE) and one["ph"] == "X":
                self._ranges.setdefault((one["tid"], one["name"]), []).append(one)
        self._served = {
            (record["peer"], record["call"]): (range_, record)
            for range_, record in self._shown(part.served, lambda _: part.name)
        }

    def _moved(self, event: Event, later: float) -> Event:
        """As an event of the whole trace: its time, its process, the ids of its arrows."""
        number = self._own + len(self._processes)
        moved = {**event, "pid": self._processes.setdefault(event["pid"], number)}
        if "ts" in event:
            moved["ts"] = round(event["ts"] + later, 3)  # whole nanoseconds, so that ranges nest
        if "id" in event:
            moved["id"] = self._number(event.get("cat", ""), event["id"])
        return moved

    def _number(self, category: str, identity: Any) -> int:
        """The whole trace's id for one of this worker's arrows."""
        return self._numbers.setdefault((self.part.rank, category, identity), len(self._numbers))

    def events(self) -> Iterator[Event]:
        """Its profile, and the steps of its pipelines."""
        own, part = self._own, self.part
        title = f"{part.name} (rank {part.rank}, {part.host}:{part.pid})"
        for one in self._events:
            if one["name"] not in _OF_PROCESS or one["pid"] != own:
                yield one
        yield _named("process_name", own, 0, title)
        yield {**_named("process_sort_index", own, 0, ""), "args": {"sort_index": part.rank}}
        steps = [one for one in part.steps if one["time_ended_ns"]]
        if steps:
            yield _named("thread_name", own, _PIPELINE, "pipeline")
        for step in steps:
            yield {
                "name": f"{step['kind']} {step['stage']}.mb{step['micro_batch']}",
                "cat": "weft::pipe",
                "ph": "X",
                "pid": own,
                "tid": _PIPELINE,
                "ts": self._time(step["time_started_ns"]),
                "dur": (step["time_ended_ns"] - step["time_started_ns"]) / 1e3,
                "args": {"mini_batch": step["mini_batch"]},
            }

    def _time(self, nanoseconds: int) -> float:
        """Of this worker's clock, in the trace."""
        return (nanoseconds - self._since) / 1e3

    def arrows(self, workers: dict[int, _Worker]) -> Iterator[Event]:
        """From the ranges of its calls to those where they ran; figures go into both."""
        names = {rank: worker.part.name for rank, worker in workers.items()}
        for here, call in self._shown(self.part.made, names.get):
            figures = {"call": call["call"], "request_bytes": call["request_bytes"]}
            here.setdefault("args", {}).update(figures, answer_bytes=call["answer_bytes"])
            callee = workers[call["peer"]]
            there, record = callee._served.get((self.part.rank, call["call"]), (None, None))
            if there is None or record is None:
                continue
            queued = (record["time_started_ns"] - record["time_created_ns"]) / 1e3
            there.setdefault("args", {}).update(figures, queue_us=queued)
            number = self._number("weft::rpc", call["call"])
            arrow = {"name": "weft::rpc", "cat": "weft::rpc", "id": number}
            yield {**arrow, "ph": "s", **_place(here)}
            # Where the clocks are less exact than the call is quick: an arrow that leads back in
            # time is not shown.
            end = {**_place(there), "ts": max(there["ts"], here["ts"])}
            yield {**arrow, "ph": "f", "bp": "e", **end}

    def _shown(
        self, records: list[Event], callee: Callable[[int], str | None]
    ) -> Iterator[tuple[Event, Event]]:
        """The range of the profile for each record of a call."""
        alike: dict[tuple[Any, str], list[Event]] = {}
        for one in records:
            function = f".{one['function']}" if one["function"] else ""
            name = f"{_RANGE}{callee(one['peer'])}{function}"
            alike.setdefault((one["thread_id"], name), []).append(one)
        for key, found in alike.items():
            ranges = sorted(self._ranges.get(key, []), key=lambda one: one["ts"])
            # A record that was made before the profile began, or while it ended, has no range.
            if len(ranges) != len(found):
                found = [self._nearest(one, found) for one in ranges]
            yield from zip(ranges, found, strict=True)

    def _nearest(self, range_: Event, records: list[Event]) -> Event:
        def distance(record: Event) -> float:
            begin = record["time_started_ns"] or record["time_created_ns"]
            return abs(self._time(begin) - range_["ts"])

        return min(records, key=distance)


def _place(event: Event) -> Event:
    return {"pid": event["pid"], "tid": event["tid"], "ts": event["ts"]}


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
