"""What is measured: operations by name and size, each as a function to call again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

SIZES = {
    "8 B": 8,
    "4 KiB": 4 << 10,
    "64 KiB": 64 << 10,
    "1 MiB": 1 << 20,
    "16 MiB": 16 << 20,
    "128 MiB": 128 << 20,
}
# One row in another type: the arithmetic of bfloat16 must not cost much more per byte.
BFLOAT16 = "all_reduce bf16"
OPERATIONS = (
    "all_reduce",
    BFLOAT16,
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "ping-pong",
)


#: From here on bytes are the limit, below it is waking the other process.
LARGE = 1 << 20


def bytes_moved(operation: str, size: int, ranks: int) -> float:
    """Bytes that one rank must copy or reduce, whatever the algorithm, of the ``size`` that the operation
    is called with."""
    foreign = size * (ranks - 1) / ranks
    return {
        "broadcast": size,
        "all_gather": size,  # its own share as well: the result is one tensor
        "all_to_all": size,
        "reduce_scatter": foreign,
        "ping-pong": 2 * size,  # there and back, one after the other
    }.get(operation, 2 * foreign)  # a reduction: reduce the shares, then gather them


def _zeros(count: int, dtype: torch.dtype, allocate_from: Any) -> torch.Tensor:
    if allocate_from is None:
        return torch.zeros(count, dtype=dtype)
    device = torch.device("cpu")
    backend = allocate_from._get_backend(device)
    return backend.allocate_tensor(count, dtype=dtype, device=device).zero_()


def make(
    operation: str, size: int, group: Any, *, allocate: bool = False
) -> tuple[Callable[[], object], torch.Tensor]:
    """The operation on ``size`` bytes: of the whole tensor, of all ranks' shares together; and its input.

    ``allocate``: in memory that the group's backend allocates.
    """
    source = group if allocate else None
    dtype = torch.bfloat16 if operation == BFLOAT16 else torch.float32
    ranks, rank = dist.get_world_size(), dist.get_rank()
    count = max(size // dtype.itemsize, ranks) // ranks * ranks
    whole = _zeros(count, dtype, source)
    share = _zeros(count // ranks, dtype, source)
    if operation in ("all_reduce", BFLOAT16):
        return lambda: dist.all_reduce(whole, group=group), whole
    if operation == "broadcast":
        return lambda: dist.broadcast(whole, 0, group=group), whole
    if operation == "reduce":
        return lambda: dist.reduce(whole, 0, group=group), whole
    if operation == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, share, group=group), share
    if operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(share, whole, group=group), whole
    if operation == "all_to_all":
        other = _zeros(count, dtype, source)
        return lambda: dist.all_to_all_single(other, whole, group=group), whole

    def ping_pong() -> None:
        if rank == 0:
            dist.send(whole, 1, group=group)
            dist.recv(whole, 1, group=group)
        elif rank == 1:
            dist.recv(whole, 0, group=group)
            dist.send(whole, 0, group=group)

    return ping_pong, whole
