"""Tensors that another process of this host receives without a copy."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch

from weft import _C

Tree = TypeVar("Tree")


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Like ``torch.empty`` on the CPU, in memory that RPC sends without copying it.

    Fill the tensor, then send it: receivers on this host map the same memory. After the first send,
    a write here or there goes to a private copy of its page, so no process sees another's writes.
    A tensor that was written to after a send is copied at the next send; make a new one for each new
    value. Below 64 KiB, and when this process has as much of such memory as it may, the result is an
    ordinary tensor.

    ::

        x = weft.empty(1024, 1024)
        x.fill_(1.0)
        rpc.rpc_sync("worker0", torch.sum, args=(x,))

    Args:
        size: the shape, as numbers or as one sequence.
        dtype: the type of the elements; by default torch's.
        requires_grad: whether autograd records operations on the tensor.
    """
    if len(size) == 1 and isinstance(size[0], Sequence):
        size = tuple(size[0])
    (tensor,) = _C.empty_exported([(list(size), dtype or torch.get_default_dtype())])
    return tensor.requires_grad_(requires_grad)


def empty_like(tensor: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """:func:`empty` with the shape and type of ``tensor``; row by row, whatever its strides.

    ::

        y = weft.empty_like(mask).copy_(mask)
        rpc.rpc_sync("worker0", torch.sum, args=(y,))

    Args:
        tensor: on any device; the result is on the CPU.
        dtype: the type of the elements; by default that of ``tensor``.
    """
    return empty(tensor.shape, dtype=dtype or tensor.dtype)


def snapshot(value: Tree) -> Tree:
    """A copy of the tensors in ``value``, in memory that RPC sends without copying it.

    For values that go to several workers, or several times, such as the weights of a parameter
    server. It copies once; all receivers on this host then map the same memory. As with
    :func:`empty`, no process sees another's later writes, so take a new snapshot for each new value.
    A receiver that keeps one of the tensors keeps the memory of all.

    Tensors below 64 KiB, and tensors that are not dense or not on the CPU, are cloned, and copied
    when they are sent. All results are detached; dense ones are contiguous.

    ::

        weights = weft.snapshot(model.state_dict())
        rpc.rpc_sync("worker0", len, args=(weights,))

    Args:
        value: a tensor, or tensors in lists, tuples and dictionaries, such as a ``state_dict()``.
            Other values in it stay as they are. Tensors that share memory, such as tied weights,
            are one tensor in the result.

    Raises:
        TypeError: ``value`` holds a module, a set or a dataclass.
    """
    tensors: dict[Hashable, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        return tensors.setdefault(_identity(tensor), tensor)

    _mapped(value, note)
    plain = {key: t for key, t in tensors.items() if _is_plain(t) and t.device.type == "cpu"}
    parts = _C.empty_exported([(list(t.shape), t.dtype) for t in plain.values()])
    copies = dict(zip(plain, parts, strict=True))
    with torch.no_grad():
        for key, tensor in tensors.items():
            if key in copies:
                copies[key].copy_(tensor)
            else:
                copies[key] = _clone(tensor)
    return _mapped(value, lambda tensor: copies[_identity(tensor)])


def _mapped(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with ``function`` of each tensor in its place, in containers of the same types."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        result = copy.copy(value)  # with its factory, or the versions that a state_dict() carries
        for key, item in value.items():
            result[key] = _mapped(item, function)
        return result
    if isinstance(value, list):
        result = copy.copy(value)
        result[:] = [_mapped(item, function) for item in value]
        return result
    if isinstance(value, tuple):
        items = [_mapped(item, function) for item in value]
        if hasattr(value, "_fields"):
            return type(value)(*items)
        return type(value)(items)
    if isinstance(value, torch.nn.Module):
        raise TypeError(
            "weft.snapshot copies tensors in lists, tuples and dictionaries, not modules: give it "
            f"the state_dict() of the {type(value).__name__}"
        )
    if isinstance(value, set | frozenset) or dataclasses.is_dataclass(value):
        raise TypeError(
            "weft.snapshot copies tensors in lists, tuples and dictionaries, not in a "
            f"{type(value).__name__}: give it one of those"
        )
    return value


def _identity(tensor: torch.Tensor) -> Hashable:
    """A key that is equal for tensors that show the same memory in the same way."""
    if not _is_plain(tensor) or tensor.numel() == 0:
        return id(tensor)
    view = (tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return tensor.device, tensor.data_ptr(), tensor.dtype, *view


def _is_plain(tensor: torch.Tensor) -> bool:
    ordinary = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    special = tensor.is_quantized or tensor.is_nested or tensor.is_meta
    return ordinary and not special and tensor.layout == torch.strided


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    if _is_plain(tensor):
        return tensor.detach().clone(memory_format=torch.contiguous_format)
    return tensor.detach().clone()
