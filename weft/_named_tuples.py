"""NamedTuples travel as plain tuples: only the process that has the class could read one. What takes them
apart in a signature, and gives Python code the class that its annotations name."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

Rebuild = Callable[[Any], Any]


def is_named_tuple(annotation: Any) -> bool:
    """Whether this is a class made by ``NamedTuple`` or ``namedtuple``."""
    return (
        isinstance(annotation, type)
        and issubclass(annotation, tuple)
        and hasattr(annotation, "_fields")
    )


def field_types(named: Any) -> list[Any]:
    """The annotations of the fields; as in TorchScript, one without is a tensor."""
    hints = typing.get_type_hints(named)
    return [hints.get(name, torch.Tensor) for name in named._fields]


def without_names(annotation: Any) -> Any:
    """The annotation with plain tuples for NamedTuples, which TorchScript takes for the same."""
    if is_named_tuple(annotation):
        inner = tuple(without_names(one) for one in field_types(annotation))
        return typing.Tuple[inner]  # noqa: UP006 - one that can be made of a tuple of types
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is None or not inner:
        return annotation
    plain = tuple(without_names(one) for one in inner)
    if plain == inner:
        return annotation
    if origin in (typing.Union, types.UnionType):
        return typing.Union[plain]  # noqa: UP007 - of a tuple of types
    return origin[plain]


def without_classes(value: Any) -> Any:
    """A value of TorchScript with plain tuples for NamedTuples: it makes classes that cannot be pickled."""
    if isinstance(value, (tuple, list)):
        made = [without_classes(item) for item in value]
        return made if isinstance(value, list) else tuple(made)
    if isinstance(value, dict):
        return {key: without_classes(item) for key, item in value.items()}
    return value


def _rebuild(annotation: Any) -> Rebuild | None:
    """What makes a value of plain tuples one of this type; None where there is nothing to do."""
    if is_named_tuple(annotation):
        fields = [_rebuild(one) for one in field_types(annotation)]
        return lambda value: annotation._make(_each(fields, value))
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    parts = [_rebuild(one) for one in inner]
    if not any(parts):
        return None
    if origin is list and parts[0] is not None:
        one = parts[0]
        return lambda value: [one(item) for item in value]
    if origin is dict and parts[1] is not None:
        content = parts[1]
        return lambda value: {key: content(item) for key, item in value.items()}
    if origin is tuple and Ellipsis not in inner:
        return lambda value: tuple(_each(parts, value))
    if origin in (typing.Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        some = next(part for part in parts if part is not None)
        return lambda value: None if value is None else some(value)
    return None  # which of several types is meant cannot be told


def _each(parts: list[Rebuild | None], values: Any) -> list[Any]:
    return [
        value if part is None else part(value) for part, value in zip(parts, values, strict=True)
    ]


def restoring(function: Callable[..., Any], annotated: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, given NamedTuples where the annotations of ``annotated`` say so.

    The function itself when they don't, or cannot be read.
    """
    try:
        hints = typing.get_type_hints(annotated)
        signature = inspect.signature(annotated)
    except (NameError, TypeError, ValueError):
        return function
    rebuild = {name: made for name, hint in hints.items() if (made := _rebuild(hint)) is not None}
    rebuild.pop("return", None)
    if not rebuild:
        return function

    def restored(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, made in rebuild.items():
            if name in bound.arguments:
                bound.arguments[name] = made(bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return restored
