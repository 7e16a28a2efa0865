"""Patches of the dumps of torch's flight recorder: Weft's operations are in them.

From the torch on that has ``FlightRecorderHook`` torch records a group of any backend itself, and
shows Weft's with ``backend="weft"``. Before that it records only its own.
"""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable
from typing import Any

import torch

from weft import _C
from weft._torch import current
from weft._torch.patches.patch import Function, Patch, patch

_MODULE = "torch._C._distributed_c10d"
PAGE = "weft_fr_trace_json"  # what torch's debug server asks a process for, with Weft's operations
WITHOUT = "torch's flight recorder and debug server do not show Weft's operations."


@patch(
    f"{_MODULE}:_dump_fr_trace_json", "(includeCollectives=None, onlyActive=None)", without=WITHOUT
)
def dump_json(upstream: Function, includeCollectives: Any = None, onlyActive: Any = None) -> bytes:
    """Adds Weft's entries to the JSON."""
    dumped = upstream(includeCollectives, onlyActive)
    wanted = includeCollectives is not False
    return _merged(dumped, json.loads, _as_json, wanted, False, bool(onlyActive))


@patch(
    f"{_MODULE}:_dump_fr_trace",
    "(includeCollectives=None, includeStackTraces=None, onlyActive=None)",
    without=WITHOUT,
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


def torch_records() -> bool:
    """Whether this torch records groups of any backend itself."""
    return hasattr(torch._C._distributed_c10d, "FlightRecorderHook")


PATCHES: tuple[Patch, ...] = () if torch_records() else (dump_json, dump_pickle)


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
        ranks = str(current.ranks_of(name))
        trace.setdefault("pg_config", {})[name] = {
            "name": name,
            "desc": description,
            "ranks": ranks,
        }
    for entry in entries:
        entry["pg_id"] += first
        _as_of_nccl(entry)
    if wanted:
        everything = [*trace.get("entries", []), *entries]
        trace["entries"] = sorted(everything, key=lambda entry: entry["time_created_ns"])
    return write(trace)


# What torch's analysis calls an operation otherwise.
_NAMES = {"barrier": "all_reduce_barrier", "_allgather_base": "_all_gather_base"}


def _as_of_nccl(entry: dict[str, Any]) -> None:
    """Names and shapes as NCCL's are recorded: torch's analysis knows no others."""
    name = entry["profiling_name"].removeprefix("weft:")
    if "peer" in entry:
        arrow = {"send": "->", "recv": "<-"}.get(name)
        if arrow:  # a receive from any rank has no name there
            entry["profiling_name"] = f"nccl:{name} {entry['rank']}{arrow}{entry['peer']}"
        return
    entry["profiling_name"] = f"nccl:{_NAMES.get(name, name)}"
    # NCCL's has one tensor for all ranks there.
    whole = {"all_gather": "output_sizes", "reduce_scatter": "input_sizes"}.get(name)
    if whole and len(entry[whole]) > 1:
        entry[whole] = [[len(entry[whole]), *entry[whole][0]]]
