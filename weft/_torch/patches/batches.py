"""Patches of what runs several operations of a group as one: point-to-point batches, coalescing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from weft import _C
from weft._torch import current
from weft._torch.patches.groups import C10D
from weft._torch.patches.patch import Function, patch


def _has_groups() -> bool:
    return bool(current.named_backends())


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
    if device.type == "cpu" or not isinstance(current.backend_of(group, device), _C.WeftBackend):
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
    without="Coalescing is refused while a weft group exists: without the patch a coalesced block "
    "keeps other threads' collectives from running, and later ones if it raised.",
    refuses=_has_groups,
    aliases=("torch.distributed:_coalescing_manager",),
    uses={f"{C10D}:_rank_not_in_group": "(group)"},
)
@contextlib.contextmanager
def coalescing_manager(
    upstream: Function,
    group: Any = None,
    device: torch.device | None = None,
    async_ops: bool = False,
) -> Iterator[Any]:
    """Coalesces what its own thread calls, and ends when the block raises.

    torch records a block's operations per group: it does not run what other threads call on that
    group meanwhile, nor anything after a block that raised, and says nothing.
    """
    own = group or c10d._get_default_group()
    if c10d._rank_not_in_group(own) or not _is_weft(own):
        with upstream(own, device, async_ops) as manager:
            yield manager
        return
    recorded = _recorded_per_thread()
    operations = recorded.begin(own)
    try:
        with upstream(own, device, async_ops) as manager:
            yield manager
            _check_alike(operations)
    except BaseException:
        recorded.pop(own, None)
        if device is not None:
            with contextlib.suppress(RuntimeError):  # the end itself may have raised
                own._end_coalescing(device)
        raise


def _is_weft(group: dist.ProcessGroup) -> bool:
    return any(isinstance(one, _C.WeftBackend) for one in current.backends_of(group))


def _check_alike(operations: list[Any]) -> None:
    """torch takes all that a block recorded for what its first operation is."""
    if len({one.op for one in operations}) > 1 or any(
        _reduction(one.redop) != _reduction(operations[0].redop) for one in operations
    ):
        raise RuntimeError("weft: a coalesced block needs operations of one kind and one reduction")


def _reduction(op: Any) -> Any:
    """A reduction as something to compare, with the factor that PREMUL_SUM has."""
    if op is None:
        return None
    one = dist.ReduceOp(op) if isinstance(op, dist.ReduceOp.RedOpType) else op
    kind, factor = one.__getstate__()
    return kind, factor.tolist() if isinstance(factor, torch.Tensor) else factor


class _Recorded(MutableMapping[Any, list[Any]]):
    """What blocks have recorded, by group: of a weft group this thread's own, of others as in torch."""

    class _Own(threading.local):
        def __init__(self) -> None:
            self.lists: dict[Any, list[Any]] = {}

    def __init__(self, shared: MutableMapping[Any, list[Any]]) -> None:
        self._shared = shared
        self._own = self._Own()

    def begin(self, group: Any) -> list[Any]:
        """The list of this thread's block on a group."""
        return self._own.lists.setdefault(group, [])

    def _lists_with(self, group: Any) -> MutableMapping[Any, list[Any]]:
        own = self._own.lists
        return own if group in own else self._shared

    def __contains__(self, group: object) -> bool:  # asked by each collective: without an exception
        return group in self._own.lists or group in self._shared

    def __getitem__(self, group: Any) -> list[Any]:
        return self._lists_with(group)[group]

    def __setitem__(self, group: Any, operations: list[Any]) -> None:
        self._lists_with(group)[group] = operations

    def __delitem__(self, group: Any) -> None:
        del self._lists_with(group)[group]

    def __iter__(self) -> Iterator[Any]:
        return iter({**self._shared, **self._own.lists})

    def __len__(self) -> int:
        return len({**self._shared, **self._own.lists})


_recorded_mutex = threading.Lock()


def _recorded_per_thread() -> _Recorded:
    """Where torch looks for what its blocks have recorded; from the first call on, a _Recorded."""
    with _recorded_mutex:
        found = c10d._world.pg_coalesce_state
        if not isinstance(found, _Recorded):
            c10d._world._pg_coalesce_state = found = _Recorded(found)
            if c10d._world.pg_coalesce_state is not found:
                raise RuntimeError(
                    f"weft: torch {torch.__version__} keeps coalesced operations where Weft does "
                    "not know: a block would keep other threads' collectives from running"
                )
        return found
