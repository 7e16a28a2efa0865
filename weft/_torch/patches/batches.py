"""Patches of what runs several operations of a group as one: point-to-point batches, coalescing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from weft import _C
from weft._torch import current
from weft._torch.patches.groups import C10D
from weft._torch.patches.patch import Function, patch


def _has_groups() -> bool:
    return bool(current.backends())


@patch(
    f"{C10D}:batch_isend_irecv",
    "(p2p_op_list)",
    without="dist.batch_isend_irecv is refused while a weft group exists: without the patch a "
    "batch of CUDA tensors may hang or be left undone.",
    refuses=_has_groups,
    aliases=("torch.distributed:batch_isend_irecv",),
    uses={f"{C10D}:_check_p2p_op_list": "(p2p_op_list)"},
)
def batch_isend_irecv(upstream: Function, p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
    """Batches CUDA tensors per thread, and to the end.

    NCCL needs a batch to be one group of calls. torch keeps the batch's state per group: it does not
    run what other threads call on that group meanwhile, nor anything after a batch that raised, and
    says nothing. So Weft does not report that it coalesces, and batches here.
    """
    c10d._check_p2p_op_list(p2p_op_list)
    device = p2p_op_list[0].tensor.device
    group = p2p_op_list[0].group or c10d._get_default_group()
    if device.type == "cpu" or not isinstance(group._get_backend(device), _C.WeftBackend):
        return upstream(p2p_op_list)
    group._start_coalescing(device)
    try:
        for op in p2p_op_list:
            peer = "group_dst" if op.op is c10d.isend else "group_src"
            op.op(op.tensor, group=op.group, tag=op.tag, **{peer: op.group_peer})
    finally:
        work = group._end_coalescing(device)
    return [work]


@patch(
    f"{C10D}:_coalescing_manager",
    "(group=None, device=None, async_ops=False)",
    without="Coalescing is refused while a weft group exists: without the patch a group whose "
    "coalesced block raised does not run later collectives.",
    refuses=_has_groups,
    aliases=("torch.distributed:_coalescing_manager",),
)
@contextlib.contextmanager
def coalescing_manager(
    upstream: Function,
    group: Any = None,
    device: torch.device | None = None,
    async_ops: bool = False,
) -> Iterator[Any]:
    """Ends coalescing when the block raises; torch's group silently runs no later collective then."""
    own = group or c10d._get_default_group()
    try:
        with upstream(own, device, async_ops) as manager:
            yield manager
    except BaseException:
        if any(isinstance(one, _C.WeftBackend) for one in current.backends_of(own)):
            c10d._world.pg_coalesce_state.pop(own, None)
            if device is not None:
                with contextlib.suppress(RuntimeError):  # the end itself may have raised
                    own._end_coalescing(device)
        raise
