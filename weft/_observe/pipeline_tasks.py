"""The last tasks of pipelines over workers, for the flight record."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Iterable
from typing import Any

from weft import _C


@dataclasses.dataclass(slots=True)
class TaskRecord:
    """One task of a mini-batch that runs in Python. Times are nanoseconds of CLOCK_MONOTONIC."""

    mini_batch: int
    stage: int
    micro_batch: int
    kind: str
    created: int
    started: int = 0  # its input is here; 0: not yet
    ended: int = 0


_kept: collections.deque[TaskRecord | _C.pipe.TaskRecord] = collections.deque(maxlen=0)


def start(size: int) -> None:
    """Keeps the last ones from now on."""
    global _kept
    _kept = collections.deque(_kept, maxlen=size)


def begin(mini_batch: int, stage: int, micro_batch: int, kind: str) -> TaskRecord:
    """The record of a task, whose times its runner fills in."""
    record = TaskRecord(mini_batch, stage, micro_batch, kind, time.monotonic_ns())
    _kept.append(record)
    return record


def follow(tasks: Iterable[_C.pipe.TaskRecord]) -> None:
    """Keeps tasks that run in C++, from their beginning on."""
    _kept.extend(tasks)


def _state(one: TaskRecord | _C.pipe.TaskRecord) -> str:
    """As torch's recorder calls it."""
    if one.ended:
        return "completed"
    return "started" if one.started else "scheduled"


def kept() -> list[dict[str, Any]]:
    """The oldest first; times in nanoseconds since 1970."""
    since = time.time_ns() - time.monotonic_ns()

    def clock(monotonic: int) -> int:
        return monotonic + since if monotonic else 0

    return [
        {
            "mini_batch": one.mini_batch,
            "stage": one.stage,
            "micro_batch": one.micro_batch,
            "kind": one.kind,
            "state": _state(one),
            "time_created_ns": clock(one.created),
            "time_started_ns": clock(one.started),
            "time_ended_ns": clock(one.ended),
        }
        for one in list(_kept)
        if one.created
    ]
