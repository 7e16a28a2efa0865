"""Visits and replaces the tensors in a value: nested tuples, lists and dictionaries, or one tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

#: Types that are leaves. pytree takes some 10 us to find that out: it asks for all registered classes.
_PLAIN = (type(None), bool, int, float, str)


def leaves(value: Any) -> list[Any]:
    """The leaves of a value, each once, even if the value has it twice."""
    if isinstance(value, Tensor):
        return [value]
    found: dict[int, Any] = {}
    _find_leaves(value, found)
    return list(found.values())


def _find_leaves(value: Any, found: dict[int, Any]) -> None:
    if isinstance(value, Tensor) or type(value) in _PLAIN:
        found[id(value)] = value
    elif type(value) in (tuple, list):
        for one in value:
            _find_leaves(one, found)
    else:
        found.update((id(leaf), leaf) for leaf in pytree.tree_leaves(value))


def tensors_in(value: Any) -> list[Tensor]:
    """The leaves of a value that are tensors."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


#: Tensors, and their versions when they were as they are needed (pipe/scripted has the same in C++).
Versions = list[tuple[Tensor, int]]


def with_versions(tensors: Sequence[Tensor]) -> Versions:
    """Without tensors of ``torch.inference_mode()``, which have no versions."""
    try:
        return [(tensor, tensor._version) for tensor in tensors]
    except RuntimeError:  # rare: to ask each tensor first would cost every task
        return [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]


def have_changed(versions: Versions) -> bool:
    """Whether one of the tensors was changed in place."""
    return any(tensor._version != version for tensor, version in versions)


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The value with ``function`` applied to its tensors, once to a tensor that occurs twice."""
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor, function(tensor)
        return made[id(tensor)][1]

    return _mapped(once, value)


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in _PLAIN:
        return value
    if type(value) in (tuple, list):
        return type(value)([_mapped(function, one) for one in value])
    return pytree.tree_map_only(Tensor, function, value)


def wants_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def cut(tensor: Tensor) -> Tensor:
    """The tensor as a leaf of the next graph."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def copied(tensor: Tensor) -> Tensor:
    """A copy, as a leaf of the next graph."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def placed(value: Any, device: torch.device) -> Any:
    """The value with its tensors on the device; those that were moved are leaves of the next graph."""

    def place(tensor: Tensor) -> Tensor:
        if tensor.device == device:
            return tensor
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    return mapped(place, value)


def placed_like(
    gradients: Sequence[Tensor | None], tensors: Sequence[Tensor]
) -> list[Tensor | None]:
    """The gradients on the devices of their tensors."""
    pairs = zip(gradients, tensors, strict=True)
    return [None if one is None else one.to(tensor.device) for one, tensor in pairs]


def joined(parts: list[Any]) -> Any:
    """As a Pipe's output: tensors, also those at the top level of a value, joined along dimension 0;
    other values as a list of one per micro-batch.

    Raises:
        TypeError: the micro-batches have different values.
        ValueError: a tensor has no dimension.
    """
    if isinstance(parts[0], Tensor):
        return _column(parts)
    rows, structures = zip(*map(_top_level, parts), strict=True)
    if any(structure != structures[0] for structure in structures):
        raise TypeError(f"micro-batches have different outputs: {', '.join(map(str, structures))}")
    columns = [_column(list(column)) for column in zip(*rows, strict=True)]
    return pytree.tree_unflatten(columns, structures[0])


def _top_level(value: Any) -> tuple[list[Any], Any]:
    """The values in it, of which none is taken apart, and how it is made of them."""
    return pytree.tree_flatten(value, is_leaf=lambda one: one is not value)


def _column(parts: list[Any]) -> Any:
    if not isinstance(parts[0], Tensor):
        return parts
    if not all(one.dim() for one in parts):
        raise ValueError(
            "outputs of micro-batches are joined along dimension 0, and one has no dimension: let the "
            "last stage give it one, or give a loss to pipe.step"
        )
    return torch.cat(parts)
