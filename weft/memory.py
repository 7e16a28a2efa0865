"""Tensors that another process of this host can be given without a copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft import (
    _C,
    _native,  # noqa: F401
)


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """As ``torch.empty`` on the CPU, in memory that RPC sends without copying it.

    Fill it as any tensor, then send it: between processes of one host its receivers map the same
    memory. From the first time it is sent on, what is written to it, here or there, goes to private
    copies of the pages that are written: nobody's writes are seen by anybody else. A tensor
    that was written to again is copied when it is sent, as any other; so make a new one
    for each new value.

    Below 64 KiB, and when this process holds as much of such memory as it may, the result is an
    ordinary tensor.

    Args:
        size: the shape, as numbers or as one sequence.
        dtype: the type of the elements; by default torch's.
        requires_grad: whether autograd should record operations on it.
    """
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = tuple(size[0])
    tensor = _C.empty_exported(list(size), dtype or torch.get_default_dtype())
    return tensor.requires_grad_(requires_grad)


def empty_like(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """:func:`empty` with the shape and type of ``tensor``; row by row, whatever its strides."""
    return empty(tensor.shape, dtype=dtype or tensor.dtype)
