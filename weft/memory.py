"""Tensors that another process of this host can be given without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch.utils import _pytree as pytree

from weft import (
    _C,
    _native,  # noqa: F401
)

Tree = TypeVar("Tree")

# Smaller tensors are copied when they are sent, wherever they lie (transport/exported_block.h).
_LEAST = 64 << 10
_PAGE = 4096  # so that a write to one tensor makes no other one's pages private


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


def snapshot(value: Tree) -> Tree:
    """A copy of the tensors in ``value``, in memory that RPC sends without copying it.

    For what goes to several workers, or several times: the weights that a learner or a parameter
    server hands out. One copy is made here; whoever of this host it is sent to then maps
    that memory, and all of them together have it once. As with :func:`empty`, what anybody writes
    to it later is seen by nobody else; so take a new one for each new value.

    Tensors below 64 KiB, and such as are not dense ones on the CPU, are cloned, and copied when they are
    sent. All are detached, and contiguous where they were dense.

    Args:
        value: a tensor, or tensors in lists, tuples and dictionaries, such as a ``state_dict()``.
            What else is in it stays as it is. A tensor that is in it twice is so in the result.
    """
    leaves, spec = pytree.tree_flatten(value)
    for leaf in leaves:
        if isinstance(leaf, torch.nn.Module):
            raise TypeError(
                "weft.snapshot copies tensors, in lists, tuples and dictionaries, not modules: give it "
                f"the state_dict() of the {type(leaf).__name__}"
            )
    tensors = {id(leaf): leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)}
    large = {key: tensor for key, tensor in tensors.items() if _is_large(tensor)}
    room = empty(sum(_rounded(tensor.nbytes) for tensor in large.values()), dtype=torch.uint8)
    copies, begin = {}, 0
    for key, tensor in tensors.items():
        if key in large:
            part = room[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            copies[key] = part.copy_(tensor)
            begin += _rounded(tensor.nbytes)
        else:
            copies[key] = tensor.clone()
    return pytree.tree_unflatten([copies.get(id(leaf), leaf) for leaf in leaves], spec)


def _is_large(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and not tensor.is_quantized and not tensor.is_nested
    dense = plain and tensor.layout == torch.strided and tensor.device.type == "cpu"
    return dense and tensor.nbytes >= _LEAST


def _rounded(size: int) -> int:
    return -(-size // _PAGE) * _PAGE
