"""What Perfetto demands of a trace in the "Trace Event Format". It drops in silence what breaks this.

The rules are those of its importer (src/trace_processor/importers/json): an arrow's id is a number, or
the text of a hexadecimal one; its ends lie in ranges, the first before the last; a range of a thread
that overlaps another one, without lying in it, is dropped; so is all that has a time below 0, names too.
perfetto_engine.py asks Perfetto itself.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

Event = dict[str, Any]
_PHASES = "XMCisfbe"  # those that Weft and torch write
_METADATA = ("process_name", "thread_name")


def check(events: list[Event]) -> None:
    """Fails with the event that breaks a rule."""
    assert events
    ranges: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    arrows: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    marks: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    named: dict[str, set[Any]] = {what: set() for what in _METADATA}
    last = 0.0
    for one in events:
        assert one["ph"] in _PHASES, one
        if one["ph"] == "M":
            assert one.get("ts", 0) >= 0, one
            if one["name"] in _METADATA:
                assert one["args"]["name"], one
                track = one["pid"] if one["name"] == "process_name" else (one["pid"], one["tid"])
                named[one["name"]].add(track)
            continue
        assert isinstance(one["pid"], int) and one["pid"] > 0, one
        assert one["ts"] >= last, f"{one} is behind a later one"
        last = one["ts"]
        if one["ph"] == "X":
            assert one["name"] and one["dur"] >= 0, one
            ranges[one["pid"], one["tid"]].append(one)
        elif one["ph"] in "sf":
            arrows[one["cat"], one["name"], _number(one["id"])].append(one)
        elif one["ph"] in "be":
            marks[one["cat"], one["name"], _number(one["id"])].append(one["ph"])
    for track, found in ranges.items():
        assert track[0] in named["process_name"] and track in named["thread_name"], track
        _check_nesting(found)
    assert all(found == ["b", "e"] for found in marks.values()), marks
    for ends in arrows.values():
        assert [one["ph"] for one in ends] == ["s", "f"], ends
        for one in ends:
            assert any(_encloses(range_, one) for range_ in ranges[one["pid"], one["tid"]]), one


def _number(identity: int | str) -> int:
    number = int(identity, 16) if isinstance(identity, str) else identity
    assert isinstance(number, int) and 0 <= number < 1 << 53, identity
    return number


def _nanoseconds(event: Event) -> tuple[int, int]:
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event.get("dur", 0) * 1000)


def _encloses(range_: Event, mark: Event) -> bool:
    begin, end = _nanoseconds(range_)
    return begin <= _nanoseconds(mark)[0] <= end


def _check_nesting(ranges: list[Event]) -> None:
    """Of one thread, in the order of their begins."""
    around: list[Event] = []
    for one in ranges:
        begin, end = _nanoseconds(one)
        while around and _nanoseconds(around[-1])[1] <= begin:
            around.pop()
        assert not around or end <= _nanoseconds(around[-1])[1], f"{one} overlaps {around[-1]}"
        around.append(one)
