"""Puts what the workers recorded into one trace of the "Trace Event Format"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

Event = dict[str, Any]
_Numbers = dict[tuple[int, str, Any], int]  # of arrows: Perfetto wants numbers for their ids

RANGE = "weft::rpc "  # how the names of calls' ranges begin
_RECORDED = 63  # characters of a function's name that a record has
_PROCESSES = 1000  # numbers of the trace for the processes that one worker's profile has
_OF_PROCESS = ("process_name", "process_sort_index")
# The thread that has a pipeline's tasks: Linux gives no thread this number. It gives 1, in a container.
_PIPELINE = 1 << 22


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
    tasks: list[Event]
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
    """The key to sort by: of ranges that begin together the outermost is first, arrows come after ranges."""
    return event.get("ts", -1), -event.get("dur", 0)


def _begin(part: Recorded) -> int:
    """When its first event began, on its own clock."""
    times = [one["ts"] for one in _events(part) if one.get("ph") == "X"]
    return _base(part) + int(min(times, default=0) * 1e3)


def _events(part: Recorded) -> list[Event]:
    """Without those of the profiler itself, whose process is a text, and without torch's range around
    `to_here`, which has no name where all threads are profiled; Weft's within it has one."""
    events = part.profile["traceEvents"]
    return [one for one in events if isinstance(one.get("pid"), int) and one["name"]]


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
            if one["name"].startswith(RANGE) and one["ph"] == "X":
                self._ranges.setdefault((one["tid"], one["name"]), []).append(one)
        self._served = {
            (record["peer"], record["call"]): (range_, record)
            for range_, record in self._shown(part.served, lambda _: part.name)
        }

    def _moved(self, event: Event, later: float) -> Event:
        """As an event of the whole trace: its time, its process, the ids of its arrows."""
        number = self._own + len(self._processes)
        moved = {**event, "pid": self._processes.setdefault(event["pid"], number)}
        if event["ph"] == "M":
            # torch gives names a time, too, before the trace's 0, where Perfetto drops them.
            moved.pop("ts", None)
        elif "ts" in event:
            moved["ts"] = round(event["ts"] + later, 3)  # whole nanoseconds, so that ranges nest
        if "id" in event:
            moved["id"] = self._number(event.get("cat", ""), event["id"])
        return moved

    def _number(self, category: str, identity: Any) -> int:
        """The whole trace's id for one of this worker's arrows."""
        return self._numbers.setdefault((self.part.rank, category, identity), len(self._numbers))

    def events(self) -> Iterator[Event]:
        """Its profile, and the tasks of its pipelines."""
        own, part = self._own, self.part
        yield named(
            "process_name", own, 0, f"{part.name} (rank {part.rank}, {part.host}:{part.pid})"
        )
        yield {**named("process_sort_index", own, 0, ""), "args": {"sort_index": part.rank}}
        tasks = list(self._tasks())
        if tasks:
            yield named("thread_name", own, _PIPELINE, "pipeline")
        profile = (
            one for one in self._events if one["name"] not in _OF_PROCESS or one["pid"] != own
        )
        yield from self._nested(sorted([*profile, *tasks], key=_order))

    def _tasks(self) -> Iterator[Event]:
        for task in self.part.tasks:
            if not task["time_ended_ns"]:
                continue
            yield {
                "name": f"{task['kind']} {task['stage']}.mb{task['micro_batch']}",
                "cat": "weft::pipe",
                "ph": "X",
                "pid": self._own,
                "tid": _PIPELINE,
                "ts": self._time(task["time_started_ns"]),
                "dur": (task["time_ended_ns"] - task["time_started_ns"]) / 1e3,
                "args": {"mini_batch": task["mini_batch"]},
            }

    def _nested(self, events: list[Event]) -> Iterator[Event]:
        """Makes two marks of a range that outlives the one in which it begins.

        An asynchronous collective's does, within the call that starts it. Perfetto drops such a range;
        the marks it shows on a track of their own.
        """
        ends: dict[tuple[Any, Any], list[float]] = {}  # of the ranges in which a thread is
        for number, one in enumerate(events):
            if one["ph"] == "X":
                around = ends.setdefault((one["pid"], one["tid"]), [])
                while around and around[-1] <= one["ts"]:
                    around.pop()
                if around and _end(one) > around[-1]:
                    yield from _marks(one, self._number("", number))
                    continue
                around.append(_end(one))
            yield one

    def _time(self, nanoseconds: int) -> float:
        """A time of this worker's clock in the trace."""
        return (nanoseconds - self._since) / 1e3

    def arrows(self, workers: dict[int, _Worker]) -> Iterator[Event]:
        """Arrows from the ranges of its calls to those where they ran; adds figures to both."""
        for there, record in self._served.values():
            queued = (record["time_started_ns"] - record["time_created_ns"]) / 1e3
            there.setdefault("args", {}).update(_figures(record), queue_us=queued)
        names = {rank: worker.part.name for rank, worker in workers.items()}
        for here, call in self._shown(self.part.made, names.get):
            answer = {"answer_bytes": call["answer_bytes"]}
            here.setdefault("args", {}).update(_figures(call), **answer)
            callee = workers[call["peer"]]
            there, _ = callee._served.get((self.part.rank, call["call"]), (None, None))
            if there is None:
                continue
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
            name = f"{RANGE}{callee(one['peer'])}{function}"
            alike.setdefault((one["thread_id"], name), []).append(one)
        for (thread, name), found in alike.items():
            ranges = sorted(self._ranges_of(thread, name), key=lambda one: one["ts"])
            yield from self._paired(ranges, found)

    def _paired(self, ranges: list[Event], records: list[Event]) -> Iterator[tuple[Event, Event]]:
        """The nearest where there are more of the one: a record that was made before the profile
        began, or while it ended, has no range; torch's own messages have no record."""
        if len(ranges) == len(records):
            return zip(ranges, records, strict=True)
        if len(ranges) < len(records):
            return ((one, min(records, key=partial(self._apart, one))) for one in ranges)
        return ((min(ranges, key=partial(self._apart, record=one)), one) for one in records)

    def _ranges_of(self, thread: int, name: str) -> list[Event]:
        """The ranges of a call; the records have the first bytes of a function with a long name."""
        exact = self._ranges.get((thread, name))
        if exact is not None or len(name) < _RECORDED:
            return exact or []
        alike = [key for key in self._ranges if key[0] == thread and key[1].startswith(name)]
        return [one for key in alike for one in self._ranges[key]]

    def _apart(self, range_: Event, record: Event) -> float:
        begin = record["time_started_ns"] or record["time_created_ns"]
        return abs(self._time(begin) - range_["ts"])


def _figures(record: Event) -> Event:
    return {"call": record["call"], "request_bytes": record["request_bytes"]}


def _end(range_: Event) -> float:
    return round(range_["ts"] + range_["dur"], 3)


def _marks(range_: Event, number: int) -> Iterator[Event]:
    """Its begin and its end; the number makes them one."""
    mark = {key: value for key, value in range_.items() if key not in ("dur", "args")}
    yield {**mark, "ph": "b", "id": number, "args": range_.get("args", {})}
    yield {**mark, "ph": "e", "id": number, "ts": _end(range_)}


def _place(event: Event) -> Event:
    return {"pid": event["pid"], "tid": event["tid"], "ts": event["ts"]}


def named(what: str, process: int, thread: int, name: str) -> Event:
    """What the trace calls a process or a thread."""
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
