"""One trace of all workers: torch's profile of each, on one clock, with the calls between them."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import json
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile, supported_activities

from weft import _C
from weft._observe import flight, pipeline_tasks
from weft._observe.clocks import clock_offset
from weft._observe.group import ask
from weft._observe.merged_trace import RANGE, Recorded, merged, named
from weft._observe.state import identity
from weft._torch import current
from weft._torch.threads import started

Answer = TypeVar("Answer")
_CALLS = 1 << 16  # that are kept while a trace is recorded
_PATIENCE = 120.0  # seconds for a worker to send its part
_ACTIVITIES = (ProfilerActivity.CPU, ProfilerActivity.CUDA)
_LOOK = 0.5  # seconds after which it is seen that the worker that traces is lost
_IMPORT = uuid.uuid4().hex
_numbers = itertools.count()
_mutex = threading.Lock()  # guards the one below
_tracing: Tracing | None = None
_ended = threading.Event()  # this process


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
    raises, nothing is written. Where this worker is lost within it, or leaves the group, the others
    are traced no longer. The RPC calls of the flight record begin anew.

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
    asker = Asker(own, _process(), next(_numbers))
    try:
        _, errors = _ask_all(own, [*others, own], begin, asker)
        if errors:
            raise errors[0]
        yield
    except BaseException:
        _ask_all(own, [own, *others], end, asker)  # those that had not begun refuse
        raise
    parts, errors = _ask_all(own, [own, *others], end, asker)
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


def _process() -> str:
    """Tells this process from all others, also from those that are forked from the same one."""
    return f"{_IMPORT}-{os.getpid()}"


def _workers() -> tuple[str, list[str]]:
    """This process, and the others; "" and none where it is in no group."""
    agent = current.agent()
    if agent is None:
        return "", []
    own = agent.get_worker_info().name
    return own, [info.name for info in agent.get_worker_infos() if info.name != own]


def _ask_all(
    own: str, workers: list[str], question: Callable[..., Answer], asker: Asker
) -> tuple[dict[str, Answer], list[Exception]]:
    """What they say, and what went wrong. The others are asked at once, before or after this process,
    whose own profile then has no such calls."""
    answers: dict[str, Answer] = {}
    errors: list[Exception] = []
    for is_own, names in itertools.groupby(workers, lambda name: name == own):
        waits: dict[str, Callable[[], Answer]] = {}
        for name in names:
            try:
                if is_own:
                    answers[name] = question(*asker)
                else:
                    waits[name] = ask(name, question, _PATIENCE, tuple(asker))
            except Exception as error:  # this process has left the group, for example
                errors.append(error)
        for name, wait in waits.items():
            try:
                answers[name] = wait()
            except Exception as error:
                errors.append(error)
    return answers, errors


class Asker(NamedTuple):
    """Who records a trace."""

    worker: str
    process: str  # unlike that of a worker of this name that was started again
    number: int  # of its trace

    def follows(self, other: Asker) -> bool:
        """Whether the other one's process has ended, as this one has its name."""
        return self.worker == other.worker and self.process != other.process


class Tracing:
    """A profile of this process, and who has asked for it."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.since = time.time_ns()  # since 1970
        self._agent = current.agent()
        everything = _ExperimentalConfig(profile_all_threads=True)
        activities = [one for one in supported_activities() if one in _ACTIVITIES]
        self.profile = profile(
            activities=activities, experimental_config=everything, acc_events=True
        )
        self.profile.start()

    def is_orphaned(self) -> bool:
        """Whether nobody will end it: this process has left the group, or the asker has, or is lost."""
        if self.asker.process == _process():
            return False
        agent = current.agent()
        if agent is None or agent is not self._agent:
            return True
        names = {info.name: info.id for info in agent.get_worker_infos()}
        return self.asker.worker not in names or agent.loss_of(names[self.asker.worker]) is not None

    def end_when_orphaned(self) -> None:
        """Looks at times until it has ended."""
        while not _ended.wait(_LOOK):
            with _mutex:
                if _tracing is not self:
                    return
                if self.is_orphaned():
                    _drop()


def begin(worker: str, process: str, number: int) -> None:
    """Profiles all threads of this process from now on."""
    global _tracing
    asker = Asker(worker, process, number)
    with _mutex:
        if _tracing is not None and (_tracing.is_orphaned() or asker.follows(_tracing.asker)):
            _drop()
        if _tracing is not None:
            raise RuntimeError("weft.trace: this process is being traced already")
        made = _tracing = Tracing(asker)
        flight.keep(_CALLS, _CALLS)
    if process != _process():
        watch = threading.Thread(target=made.end_when_orphaned, name="weft-trace", daemon=True)
        started(watch, "a trace goes on when the worker that records it is lost")


def _stop() -> Tracing:
    """The lock is held."""
    global _tracing
    assert _tracing is not None
    ended, _tracing = _tracing, None
    ended.profile.stop()
    return ended


def _drop() -> None:
    """The lock is held."""
    _stop()
    flight.keep_as_asked()


@atexit.register
def _stop_at_exit() -> None:
    """A profile that another thread has begun ends the interpreter with a segmentation fault."""
    _ended.set()
    with _mutex:
        if _tracing is not None:
            _stop()


def end(worker: str, process: str, number: int) -> Recorded:
    """What was recorded here since then."""
    asked = time.time_ns()
    with _mutex:  # what the next trace records begins behind this one's
        if _tracing is None or _tracing.asker != Asker(worker, process, number):
            raise RuntimeError("weft.trace: this process is not being traced")
        ended = _stop()
        made, served = _C._recorded_calls(stacks=False)
        tasks = [one for one in pipeline_tasks.kept() if one["time_created_ns"] >= ended.since]
        flight.keep_as_asked()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        ended.profile.export_chrome_trace(file.name)
        found = json.loads(Path(file.name).read_bytes())
    found["traceEvents"] = [
        one for one in found["traceEvents"] if not _is_question(one, found, asked)
    ]
    found["traceEvents"] += _names_left_out(found["traceEvents"])
    return Recorded(**identity(), profile=found, made=made, served=served, tasks=tasks)


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
