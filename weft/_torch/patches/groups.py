"""Patches of what ``torch.distributed`` offers only to the backends that it knows by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from weft import _C
from weft._torch import current
from weft._torch.patches.patch import Function, patch

C10D = "torch.distributed.distributed_c10d"


def _serves_cpu(group: Any) -> bool:
    """Whether Weft serves the group's CPU tensors, by whatever name the backend was asked for."""
    own = c10d._get_default_group() if group is None else group
    cpu = torch.device("cpu")
    return cpu in own._device_types and isinstance(current.backend_of(own, cpu), _C.WeftBackend)


@patch(
    f"{C10D}:monitored_barrier",
    "(group=None, timeout=None, wait_all_ranks=False)",
    without="dist.monitored_barrier refuses groups of the backend weft.",
    aliases=("torch.distributed:monitored_barrier",),
    uses={f"{C10D}:_rank_not_in_group": "(group)", f"{C10D}:_check_valid_timeout": "(timeout)"},
)
def monitored_barrier(
    upstream: Function, group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
) -> Any:
    """Serves groups of Weft; torch refuses every backend that is not named gloo."""
    if c10d._rank_not_in_group(group) or not _serves_cpu(group):
        return upstream(group, timeout, wait_all_ranks)
    if timeout is None:
        timeout = c10d.default_pg_timeout
    elif isinstance(timeout, float):
        timeout = timedelta(seconds=timeout)
    c10d._check_valid_timeout(timeout)
    own = c10d._get_default_group() if group is None else group
    return own.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)


@patch(
    f"{C10D}:_set_pg_timeout",
    "(timeout, group=None)",
    without="The timeout of a weft group stays what it was when the group was made.",
    uses={f"{C10D}:_rank_not_in_group": "(group)"},
)
def set_pg_timeout(upstream: Function, timeout: timedelta, group: Any = None) -> None:
    """Sets the timeout of Weft's backends; torch does so for gloo and nccl, and warns for others."""
    own = c10d._get_default_group() if group is None else group
    backends = [] if c10d._rank_not_in_group(own) else current.backends_of(own)
    ours = [backend for backend in backends if isinstance(backend, _C.WeftBackend)]
    for backend in ours:
        backend._set_default_timeout(timeout)
    if len(ours) < len(backends) or not ours:
        upstream(timeout, group)


@patch(
    "torch.distributed:ProcessGroup._get_sequence_number_for_group",
    "(self)",
    without="ProcessGroup._get_sequence_number_for_group() refuses groups of the backend weft.",
)
def sequence_number(upstream: Function, self: Any) -> int:
    """Asks Weft's backend; torch asks only those that it knows by name."""
    if not _serves_cpu(self):
        return upstream(self)
    return current.backend_of(self, torch.device("cpu"))._get_sequence_number_for_group()


@patch(
    "torch.nn.parallel:DistributedDataParallel._get_ddp_logging_data",
    "(self)",
    without="The logging data of DistributedDataParallel calls the backend weft custom.",
)
def ddp_logging_data(upstream: Function, self: Any) -> Any:
    """Names the backend; torch's logger calls each one that it does not know "custom"."""
    data = upstream(self)
    if data.get("backend_name") == "custom" and _serves_cpu(self.process_group):
        data["backend_name"] = "weft"
    return data
