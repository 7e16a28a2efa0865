"""Recording a pipeline and saving the result.

::

    with pipe.record() as timeline:
        pipe(batch).local_value().sum().backward()
    print(timeline.figures)
    timeline.save("run.svg")

A timeline may hold many mini-batches; its figures and picture show the one of median time.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from weft._observe.merged_trace import named
from weft.pipe._timeline import svg
from weft.pipe._timeline.events import Event, Figures, RecordedMiniBatch, mini_batches


class Timeline:
    """A recording that has ended. Its file's ending chooses ``.svg`` or ``.json`` (a Chrome trace)."""

    def __init__(self, lanes: Sequence[str] = ()) -> None:
        #: What does one task at a time: a stage and its device, or a worker.
        self.lanes = tuple(lanes)
        self._batches: list[RecordedMiniBatch] | None = None

    def close(self, batches: Iterable[RecordedMiniBatch]) -> None:
        """Takes what was recorded; for the context manager that records."""
        self._batches = list(batches)

    @property
    def mini_batches(self) -> list[RecordedMiniBatch]:
        """What was recorded. ValueError while recording goes on, or if nothing was recorded."""
        if self._batches is None:
            raise ValueError("the recording goes on: leave `with pipe.record()` first")
        if not self._batches:
            raise ValueError("nothing was recorded: call the Pipe within `with pipe.record()`")
        return self._batches

    @property
    def typical(self) -> RecordedMiniBatch:
        """The mini-batch of median time."""
        ordered = sorted(self.mini_batches, key=lambda batch: batch.figures().seconds)
        return ordered[len(ordered) // 2]

    @property
    def figures(self) -> Figures:
        """The figures of the typical mini-batch."""
        return self.typical.figures()

    def save(self, path: str | Path) -> Path:
        """Writes a picture (``.svg``) or a trace of all mini-batches (``.json``); returns the path.

        The trace opens in chrome://tracing and Perfetto.

        Raises:
            ValueError: the path ends otherwise, or nothing was recorded.
        """
        path = Path(path)
        if path.suffix == ".svg":
            text = svg.draw(self.mini_batches, self.typical, self.lanes)
        elif path.suffix == ".json":
            trace = _trace(self.mini_batches, self.figures, self.lanes)
            text = json.dumps(trace, ensure_ascii=False)  # Perfetto shows escapes as they are
        else:
            raise ValueError(f"a timeline is saved as .svg or .json, not as '{path.name}'")
        path.write_text(text, encoding="utf-8")
        return path


@contextlib.contextmanager
def recording(engine: Any, devices: Sequence[Any]) -> Iterator[Timeline]:
    """``with pipe.record() as timeline:`` records what the Pipe does within.

    One at a time; costs two readings of the clock per task.
    """
    timeline = Timeline([f"stage {stage} · {device}" for stage, device in enumerate(devices)])
    engine.start_recording()
    try:
        yield timeline
    finally:
        timeline.close(mini_batches(Event(*event) for event in engine.stop_recording()))


def _trace(
    batches: Sequence[RecordedMiniBatch], figures: Figures, lanes: Sequence[str]
) -> dict[str, Any]:
    """The "Trace Event Format": complete events in microseconds, one thread per lane."""
    origin = min(event.begin for batch in batches for event in batch.events)
    records: list[dict[str, Any]] = [named("process_name", 0, 0, "weft.Pipe")]
    records += [named("thread_name", 0, number, lane) for number, lane in enumerate(lanes)]
    for number, batch in enumerate(batches):
        records += [
            {
                "name": f"{event.kind[0].upper()}{event.stage}.mb{event.micro_batch}",
                "cat": event.kind,
                "ph": "X",
                "ts": (event.begin - origin) / 1e3,
                "dur": (event.end - event.begin) / 1e3,
                "pid": 0,
                "tid": batch.lane(event),
                "args": {
                    "mini_batch": number,
                    "micro_batch": event.micro_batch,
                    "thread": event.thread,
                },
            }
            for event in batch.events
        ]
    return {"traceEvents": records, "displayTimeUnit": "ms", "otherData": vars(figures)}
