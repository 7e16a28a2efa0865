"""What a process does now, in a line: what others are told who wait for it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType

import torch

from weft._observe.waits import who_waits
from weft._torch.patches.failures import run_function

_LIBRARIES = (
    f"{Path(__file__).parents[1]}/",
    *(f"{Path(one.__file__ or '').parent}/" for one in (torch, threading)),
)
_RUNS = run_function.replacement.__code__  # what torch calls for a request
_MOST = 3  # requests that are named


def doing() -> str:
    """What the main thread runs, what this process waits for longest, and what it serves."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    place = _place(frame) if frame is not None else ""
    waits = [one for one in who_waits() if one.what != "other"]
    parts = [f"its main thread is {place}"] if place else []
    if waits:
        parts.append(str(waits[0]))
    if serves := _serves():
        parts.append(f"it serves {', '.join(serves)}")
    return "; ".join(parts)


def _place(frame: FrameType) -> str:
    """The innermost line that is not a library's; else the innermost."""
    inner: FrameType | None = frame
    while inner is not None and inner.f_code.co_filename.startswith(_LIBRARIES):
        inner = inner.f_back
    found = inner or frame
    code = found.f_code
    return f"at {Path(code.co_filename).name}:{found.f_lineno} ({code.co_name})"


def _serves() -> list[str]:
    """The Python functions that run here for other workers."""
    frames = [_serving(frame) for frame in sys._current_frames().values()]
    return [name for name in frames if name and name != doing.__name__][:_MOST]


def _serving(frame: FrameType | None) -> str:
    """The function that a thread runs for a peer; empty: none."""
    while frame is not None:
        if frame.f_code is _RUNS:
            function = getattr(frame.f_locals.get("python_udf"), "func", None)
            return getattr(function, "__qualname__", "")
        frame = frame.f_back
    return ""
