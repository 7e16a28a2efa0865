"""What of Weft runs in this process now: the RPC agent, the process groups, and their recorder."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rpc import api

from weft import _C

#: How many RPC agents this process has made; registration counts them.
agents_made = 0


def agent() -> _C.WeftAgent | None:
    """The current RPC agent if it is Weft's, else None."""
    if not api._is_current_rpc_agent_set():
        return None
    try:
        found = api._get_current_rpc_agent()
    except RuntimeError:  # another thread has just ended it
        return None
    return found if isinstance(found, _C.WeftAgent) else None


def named_backends() -> list[tuple[str, Any]]:
    """The Weft backends of this process's groups, with the groups' names."""
    if not dist.is_initialized():
        return []
    groups = list(dist.distributed_c10d._world.pg_map)
    found = {
        id(backend): (group.group_name, backend)
        for group in groups
        for backend in backends_of(group)
        if isinstance(backend, _C.WeftBackend)
    }
    return list(found.values())


def group_text(name: str) -> str:
    """How log lines name a process group, as in C++; torch calls the default one "0"."""
    return "the default process group" if name == "0" else f"process group '{name}'"


def ranks_of(name: str) -> list[int]:
    """The global ranks of the process group with this name; none if it has ended."""
    if not dist.is_initialized():
        return []
    world = dist.distributed_c10d._world
    found = next((one for one in list(world.pg_map) if one.group_name == name), None)
    return list(world.pg_group_ranks.get(found, ()))  # another thread may have ended it by now


def backends_of(group: dist.ProcessGroup) -> list[Any]:
    """The backends of a group, each once: several device types may share one."""
    found = [backend_of(group, device) for device in group._device_types]
    return list({id(backend): backend for backend in found}.values())


def backend_of(group: dist.ProcessGroup, device: torch.device) -> Any:
    """A group's backend for a device, without the wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    found = group._get_backend(device)
    return getattr(found, "wrapped_pg", found)
