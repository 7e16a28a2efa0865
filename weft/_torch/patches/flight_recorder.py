"""Patches of the dumps of torch's flight recorder: Weft's operations are in them.

From the torch on that has ``FlightRecorderHook`` torch records a group of any backend itself, and
shows Weft's with ``backend="weft"``. Before that it records only its own.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from weft import _C
from weft._torch.patches.patch import Function, Patch, patch

_MODULE = "torch._C._distributed_c10d"
_WITHOUT = "torch's flight recorder does not show Weft's operations."


def is_needed() -> bool:
    """Whether this torch records only backends of its own."""
    return dist.is_available() and not hasattr(torch._C._distributed_c10d, "FlightRecorderHook")


@functools.cache
def start() -> None:
    """Records from now on, as many operations as torch's variables say."""
    if is_needed():
        names = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
        size = int(next((os.environ[name] for name in names if os.environ.get(name)), "2000"))
        _C._record_operations(
            max(size, 0),
            stacks=_is_on("TORCH_INCLUDE_STACK_TRACE", default=True),
            cpp_stacks=_is_on("TORCH_FR_CPP_STACK") or _is_on("TORCH_NCCL_TRACE_CPP_STACK"),
        )


def _is_on(name: str, default: bool = False) -> bool:
    return os.environ.get(name, str(int(default))).lower() in ("1", "true", "yes", "y", "t")


@patch(
    f"{_MODULE}:_dump_fr_trace_json", "(includeCollectives=None, onlyActive=None)", without=_WITHOUT
)
def dump_json(upstream: Function, includeCollectives: Any = None, onlyActive: Any = None) -> bytes:
    """Adds Weft's entries to the JSON."""
    dumped = upstream(includeCollectives, onlyActive)
    wanted = includeCollectives is not False
    return _merged(dumped, json.loads, _as_json, wanted, False, bool(onlyActive))


@patch(
    f"{_MODULE}:_dump_fr_trace",
    "(includeCollectives=None, includeStackTraces=None, onlyActive=None)",
    without=_WITHOUT,
)
def dump_pickle(
    upstream: Function,
    includeCollectives: Any = None,
    includeStackTraces: Any = None,
    onlyActive: Any = None,
) -> bytes:
    """Adds Weft's entries, with their stacks, to the pickle."""
    dumped = upstream(includeCollectives, includeStackTraces, onlyActive)
    wanted, stacks = includeCollectives is not False, includeStackTraces is not False
    as_pickle = functools.partial(pickle.dumps, protocol=2)  # torch's own
    return _merged(dumped, pickle.loads, as_pickle, wanted, stacks, bool(onlyActive))


PATCHES: tuple[Patch, ...] = (dump_json, dump_pickle) if is_needed() else ()


def _as_json(trace: dict[str, Any]) -> bytes:
    return json.dumps(trace, separators=(",", ":"), sort_keys=True).encode()


def _merged(
    dumped: bytes,
    read: Callable[[bytes], dict[str, Any]],
    write: Callable[[dict[str, Any]], bytes],
    wanted: bool,
    stacks: bool,
    only_active: bool,
) -> bytes:
    """torch's dump, with what Weft has recorded."""
    groups = _C._recorded_groups()
    entries = _C._recorded_operations(stacks=stacks, only_active=only_active) if wanted else []
    if not groups and not entries:
        return dumped
    trace = read(dumped)
    status = trace.setdefault("pg_status", {})
    first = 1 + max((int(one) for one in status), default=-1)  # torch's ids of groups come first
    for number, group in groups.items():
        name, description = group.pop("name"), group.pop("desc")
        status[str(first + number)] = {what: str(value) for what, value in group.items()}
        ranks = str(_ranks_of(name))
        trace.setdefault("pg_config", {})[name] = {
            "name": name,
            "desc": description,
            "ranks": ranks,
        }
    for entry in entries:
        entry["pg_id"] += first
    if wanted:
        everything = [*trace.get("entries", []), *entries]
        trace["entries"] = sorted(everything, key=lambda entry: entry["time_created_ns"])
    return write(trace)


def _ranks_of(name: str) -> list[int]:
    """The global ranks of the group with this name; none if it has ended."""
    if not dist.is_initialized():
        return []
    groups = list(dist.distributed_c10d._world.pg_map)
    return next((dist.get_process_group_ranks(one) for one in groups if one.group_name == name), [])
