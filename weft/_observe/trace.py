"""One trace of all workers: torch's profile of each, on one clock, with the calls between them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile, supported_activities

from weft import _C
from weft._observe import flight, steps
from weft._observe.clocks import clock_offset
from weft._observe.group import ask
from weft._observe.merged_trace import RANGE, Recorded, merged, named
from weft._observe.state import identity
from weft._torch import current

Answer = TypeVar("Answer")
_CALLS = 1 << 16  # that are kept while a trace is recorded
_PATIENCE = 120.0  # seconds for a worker to send its part
_ACTIVITIES = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
_mutex = threading.Lock()  # guards the two below
_profile: profile | None = None
_since = 0  # when it began, in nanoseconds since 1970


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Records what all workers of the RPC group do within, as one trace.

    ::

        with weft.trace("step.json"):
            train_step()

    The file opens in Perfetto and chrome://tracing: each worker is a process, with torch's profile
    of all its threads; each call is a range ``weft::rpc worker1.f`` at its caller and at its callee,
    with an arrow between them, its bytes and how long it waited for a thread there. Times are those
    of this worker's clock. Where ``path`` is a folder, each worker's own profile is written there
    instead, as TensorBoard's profiler plugin reads it.

    Any worker may record, one at a time. Outside of a group it records this process. Where the block
    raises, nothing is written. The RPC calls of the flight record begin anew.

    Args:
        path: a file to write, in a folder that exists; or a folder.

    Raises:
        FileNotFoundError: the file's folder does not exist.
        RuntimeError: a worker is being traced already, or cannot be asked.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"weft.trace: there is no folder {path.parent}")
    own, others = _workers()
    begun, errors = _ask_all(own, [*others, own], begin)
    ends = [name for name in (own, *others) if name in begun]
    try:
        if errors:
            raise errors[0]
        yield
    except BaseException:
        _ask_all(own, ends, end)
        raise
    parts, errors = _ask_all(own, ends, end)
    if errors:
        raise errors[0]
    if path.is_dir():
        for part in parts.values():
            name = f"{part.name}.{time.time_ns() // 1_000_000}.pt.trace.json"
            (path / name).write_text(json.dumps(part.profile))
        return
    recorded = [
        dataclasses.replace(part, offset=clock_offset(name, time.time_ns) if name else 0)
        for name, part in parts.items()
    ]
    # Perfetto shows the escapes of other letters as they are.
    path.write_text(json.dumps(merged(recorded), ensure_ascii=False), encoding="utf-8")


def _workers() -> tuple[str, list[str]]:
    """This process, and the others; "" and none where it is in no group."""
    agent = current.agent()
    if agent is None:
        return "", []
    own = agent.get_worker_info().name
    return own, [info.name for info in agent.get_worker_infos() if info.name != own]


def _ask_all(
    own: str, workers: list[str], question: Callable[[], Answer]
) -> tuple[dict[str, Answer], list[Exception]]:
    """What they say, and what went wrong. The others are asked at once, before or after this process,
    whose own profile then has no such calls."""
    answers: dict[str, Answer] = {}
    errors: list[Exception] = []
    for is_own, names in itertools.groupby(workers, lambda name: name == own):
        waits = {name: question if is_own else ask(name, question, _PATIENCE) for name in names}
        for name, wait in waits.items():
            try:
                answers[name] = wait()
            except Exception as error:
                errors.append(error)
    return answers, errors


def begin() -> None:
    """Profiles all threads of this process from now on."""
    global _profile, _since
    with _mutex:
        if _profile is not None:
            raise RuntimeError("weft.trace: this process is being traced already")
        everything = _ExperimentalConfig(profile_all_threads=True)
        activities = [one for one in supported_activities() if one in _ACTIVITIES]
        begun = profile(activities=activities, experimental_config=everything, acc_events=True)
        begun.start()
        _profile, _since = begun, time.time_ns()
        flight.keep(_CALLS, _CALLS)


def end() -> Recorded:
    """What was recorded here since then."""
    global _profile
    asked = time.time_ns()
    with _mutex:
        ended, _profile, since = _profile, None, _since
    if ended is None:
        raise RuntimeError("weft.trace: this process is not being traced")
    ended.stop()
    made, served = _C._recorded_calls(stacks=False)
    tasks = [one for one in steps.kept() if one["time_created_ns"] >= since]
    flight.keep_as_asked()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        ended.export_chrome_trace(file.name)
        found = json.loads(Path(file.name).read_bytes())
    found["traceEvents"] = [
        one for one in found["traceEvents"] if not _is_question(one, found, asked)
    ]
    found["traceEvents"] += _names_left_out(found["traceEvents"])
    return Recorded(**identity(), profile=found, made=made, served=served, steps=tasks)


def _names_left_out(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The threads' names where the profiler gave them to an earlier trace of this process only."""
    known = {one.get("tid") for one in events if one["name"] == "thread_name"}
    ranges = [one for one in events if one["ph"] == "X" and isinstance(one.get("pid"), int)]
    unnamed = {(one["pid"], one["tid"]) for one in ranges if one["tid"] not in known}
    return [
        named("thread_name", pid, tid, f"thread {tid} ({_system_name(tid)})")
        for pid, tid in unnamed
    ]


def _system_name(thread: int) -> str:
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().strip()
    except OSError:
        return "ended"


def _is_question(event: dict[str, Any], profile_: dict[str, Any], asked: int) -> bool:
    """Whether it is the range of `end` itself, which another worker has called: this thread's last."""
    if event.get("tid") != threading.get_native_id() or event["ph"] != "X":
        return False
    now = (asked - int(profile_.get("baseTimeNanoseconds", 0))) / 1e3
    return event["name"].startswith(RANGE) and event["ts"] <= now <= event["ts"] + event["dur"]
