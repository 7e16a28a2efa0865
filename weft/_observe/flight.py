"""The flight record: what this process did last, for torch's tools, in a file when something fails."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from weft import _C
from weft._observe import pipeline_tasks, state
from weft._observe.group_store import GroupStore
from weft._observe.messages import with_messages_in_pairs
from weft._observe.waits import who_waits
from weft._torch import current
from weft._torch.compiler import not_imported_for_stacks
from weft._torch.log import inform, warn
from weft._torch.patches.flight_recorder import torch_records
from weft._torch.threads import started

_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_STACKS = "TORCH_INCLUDE_STACK_TRACE"
_SLICE = 0.5  # seconds between looks
_KEY = "weft/flight_dumps"  # in the group's Store: how many dumps were begun
_mutex = threading.Lock()
_dumper: _Dumper | None = None
_started: int | None = None  # the process that records


def start() -> None:
    """Records from now on, as torch's variables say; a second call changes nothing."""
    global _dumper, _started
    kept = size()
    with _mutex:
        if _started == os.getpid():
            return
        _started = os.getpid()
    keep_as_asked()
    _C._record_operations(
        0 if torch_records() else kept,
        stacks=kept > 0 and _is_on(_STACKS, default=True),
        cpp_stacks=_is_on("TORCH_FR_CPP_STACK") or _is_on("TORCH_NCCL_TRACE_CPP_STACK"),
    )
    if kept > 0 and _variable(_FILES):
        _dumper = _Dumper()
        if started(_dumper, "no flight records are written"):
            atexit.register(_dumper.stop)
            _dumper.listen()


def keep_as_asked() -> None:
    """As torch's variables say; calls only where one of them is set, for they are small and many."""
    kept = size()
    keep(kept if _variable(_SIZES) or _variable(_FILES) else 0, kept)


def keep(calls: int, tasks: int) -> None:
    """Keeps so many RPC calls of each direction, and tasks of pipelines, from now on.

    The stacks of calls cost more than all else of their records: only where they are asked for.
    """
    _C._record_calls(calls, stacks=_is_on(_STACKS))
    pipeline_tasks.start(tasks)


def size() -> int:
    """How many operations of each kind are kept; 0: none."""
    for name in _SIZES:
        if text := os.environ.get(name):
            try:
                return max(int(text), 0)
            except ValueError:
                raise ValueError(f"{name} must be a whole number, got {text!r}") from None
    return 2000


def _variable(names: tuple[str, ...]) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _is_on(name: str, default: bool = False) -> bool:
    return os.environ.get(name, str(int(default))).lower() in ("1", "true", "yes", "y", "t")


def record(stacks: bool = True) -> dict[str, Any]:
    """What torch's recorder dumps, with Weft's operations; RPC calls, tasks of pipelines, and waits."""
    with not_imported_for_stacks():
        trace = pickle.loads(torch._C._distributed_c10d._dump_fr_trace(includeStackTraces=stacks))
        made, served = _C._recorded_calls(stacks)
    waits = [dataclasses.asdict(one) for one in who_waits()]
    own = {
        "rpc_calls": made,
        "rpc_requests": served,
        "pipeline_steps": pipeline_tasks.kept(),
        "waits": waits,
        "stacks": state.own_stacks()["stacks"],
    }
    return {**with_messages_in_pairs(trace), **own}


def dump_flight_record(path: str | os.PathLike[str] | None = None) -> Path:
    """Writes what this process did last: collectives, RPC calls, tasks of pipelines, messages that have
    not ended; and where its threads are.

    The file is a pickle that torch's analysis reads: give each rank's a name that ends with the rank,
    all in one folder, and run ``python -m torch.distributed.flight_recorder.fr_trace FOLDER``::

        weft.dump_flight_record("rank_0")

    Args:
        path: by default torch's ``TORCH_FR_DUMP_TEMP_FILE`` with the rank behind it.

    Returns:
        The file's path.

    Raises:
        ValueError: there is no path, and the variable is unset.
        OSError: the file cannot be written.
    """
    if path is None:
        prefix = _variable(_FILES)
        if not prefix:
            raise ValueError("give a path, or set TORCH_FR_DUMP_TEMP_FILE")
        path = f"{prefix}{rank()}"
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_bytes(pickle.dumps(record(), protocol=2))
    return unfinished.replace(path)


def rank() -> int:
    """Of the default process group, else of the RPC group, else 0."""
    if dist.is_initialized():
        return dist.get_rank()
    agent = current.agent()
    return agent.get_worker_info().id if agent is not None else 0


class _Dumper(threading.Thread):
    """Writes the record when something fails here, when another rank has done so, and at SIGUSR2.

    torch's analysis needs all ranks' records, also of one that never came to the collective. The
    Store's counter says how many dumps the group has begun; a rank dumps once for each number that
    it has not seen.
    """

    def __init__(self) -> None:
        super().__init__(name="weft-flight", daemon=True)
        self._ended = threading.Event()
        self._asked = False  # by SIGUSR2
        self._store = GroupStore()
        self._begun = 0  # dumps in the group that this rank knows of
        self._told = -math.inf  # when it told the others of one
        self._was_in_group = False

    def listen(self) -> None:
        """Handles SIGUSR2, unless the program does. Main thread; elsewhere it is left alone."""
        with contextlib.suppress(ValueError):
            if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
                signal.signal(signal.SIGUSR2, lambda *_: self._ask())

    def _ask(self) -> None:
        self._asked = True

    def run(self) -> None:
        failures = 0
        while True:
            ended = self._ended.wait(_SLICE)
            before, failures = failures, _failures(failures)
            if failures > before:
                self._dump("an operation has failed")
                self._begun = self._count(1)
                self._told = time.monotonic()
            elif self._asked:
                self._asked = False
                self._dump("SIGUSR2")
            elif not ended and (begun := self._count(0)) > self._begun:
                self._begun = begun
                self._dump("another rank wrote its own")
            if ended:  # perhaps by that failure; the Store may end with this process
                time.sleep(max(0, self._told + 2 * _SLICE - time.monotonic()))
                return

    def _dump(self, why: str) -> None:
        try:
            path = dump_flight_record()
            inform(f"the flight record is in {path}: {why}")
        except Exception as error:
            warn(f"the flight record is not written: {error}")

    def _count(self, more: int) -> int:
        """How many dumps were begun in the group, with these; as known where no Store answers."""
        with contextlib.suppress(Exception):
            changed, store = self._store.refresh(), self._store.connection
            if store is not None:
                if changed and self._was_in_group:  # one before may have had the same Store
                    self._begun = store.add(_KEY, 0)
                self._was_in_group = True
                return store.add(_KEY, more)
        return self._begun

    def stop(self) -> None:
        self._ended.set()
        self.join(timeout=10)


def _failures(before: int) -> int:
    """How many operations and calls have failed, and workers are lost, as far as is known.

    Fewer than before where a worker has come back, or the group is another one. What a Python
    function raised is an answer, no failure.
    """
    try:
        count = _C._failed_operations()
        agent = current.agent()
        if agent is not None:
            count += int(agent.get_debug_info()["agent.calls_failed"])
            count += sum(bool(agent.loss_of(info.id)) for info in agent.get_worker_infos())
        return count
    except Exception:  # another thread ends the group
        return before
