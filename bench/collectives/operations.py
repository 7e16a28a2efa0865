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


def make(operation: str, size: int, group: Any) -> Callable[[], object]:
    """The operation on ``size`` bytes: of the whole tensor, of all ranks' shares together."""
    dtype = torch.bfloat16 if operation == BFLOAT16 else torch.float32
    ranks, rank = dist.get_world_size(), dist.get_rank()
    count = max(size // dtype.itemsize, ranks) // ranks * ranks
    whole = torch.zeros(count, dtype=dtype)
    share = torch.zeros(count // ranks, dtype=dtype)
    if operation in ("all_reduce", BFLOAT16):
        return lambda: dist.all_reduce(whole, group=group)
    if operation == "broadcast":
        return lambda: dist.broadcast(whole, 0, group=group)
    if operation == "reduce":
        return lambda: dist.reduce(whole, 0, group=group)
    if operation == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, share, group=group)
    if operation == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(share, whole, group=group)
    if operation == "all_to_all":
        other = torch.zeros_like(whole)
        return lambda: dist.all_to_all_single(other, whole, group=group)

    def ping_pong() -> None:
        if rank == 0:
            dist.send(whole, 1, group=group)
            dist.recv(whole, 1, group=group)
        elif rank == 1:
            dist.recv(whole, 0, group=group)
            dist.send(whole, 0, group=group)

    return ping_pong
