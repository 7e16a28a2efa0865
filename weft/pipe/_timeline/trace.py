"""A timeline as a Chrome trace (the "Trace Event Format"), for chrome://tracing and Perfetto."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from weft.pipe._timeline.events import Event, Figures, MiniBatch

_LETTERS = {"forward": "F", "recompute": "R", "backward": "B", "copy": "C"}


def dump(batches: Sequence[MiniBatch], figures: Figures, devices: Sequence[str]) -> str:
    """The JSON text: complete events in microseconds, one thread per stage, figures beside them."""
    origin = min(event.begin for batch in batches for event in batch.events)
    records: list[dict[str, Any]] = [_named("process_name", 0, "weft.Pipe")]
    for stage in range(batches[0].stages):
        device = f" ({devices[stage]})" if stage < len(devices) else ""
        records.append(_named("thread_name", stage, f"stage {stage}{device}"))
    for number, batch in enumerate(batches):
        records += [_complete(event, number, origin) for event in batch.events]
    trace = {"traceEvents": records, "displayTimeUnit": "ms", "otherData": vars(figures)}
    return json.dumps(trace)


def _named(what: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": 0, "tid": thread, "args": {"name": name}}


def _complete(event: Event, mini_batch: int, origin: int) -> dict[str, Any]:
    return {
        "name": f"{_LETTERS.get(event.kind, event.kind)}{event.stage}.mb{event.micro_batch}",
        "cat": event.kind,
        "ph": "X",
        "ts": (event.begin - origin) / 1e3,
        "dur": (event.end - event.begin) / 1e3,
        "pid": 0,
        "tid": event.stage,
        "args": {
            "mini_batch": mini_batch,
            "micro_batch": event.micro_batch,
            "thread": event.thread,
        },
    }
