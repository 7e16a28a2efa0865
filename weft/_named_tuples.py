"""NamedTuples travel as plain tuples: only the process that has the class could read one. What takes them
apart in a signature, and gives Python code the class that its annotations name (and the dtype, which
TorchScript takes for a number)."""

from __future__ import annotations

import collections
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
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


def holds_names(annotation: Any) -> bool:
    """Whether NamedTuples are in it, at any depth."""
    return is_named_tuple(annotation) or any(
        holds_names(one) for one in typing.get_args(annotation)
    )


def found(module: str, qualified_name: str, fields: Sequence[str]) -> Any:
    """The NamedTuple of that name and these fields, if this process has it already; else None."""
    value: Any = sys.modules.get(module)
    for part in qualified_name.split("."):
        value = getattr(value, part, None)
    return value if is_named_tuple(value) and value._fields == tuple(fields) else None


@functools.cache
def _stand_in(name: str, fields: tuple[str, ...]) -> Any:
    made = collections.namedtuple(name, fields)  # type: ignore[misc]
    made.__reduce__ = lambda self: (remade, (name, fields, tuple(self)))  # type: ignore[method-assign]
    return made


def remade(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """A NamedTuple of a class that only its name and fields are known of."""
    return _stand_in(name, fields)._make(values)


def portable(value: Any) -> Any:
    """A value of TorchScript for other processes: it makes NamedTuples of classes that cannot be pickled."""
    if isinstance(value, tuple):
        items = [portable(item) for item in value]
        if not hasattr(value, "_fields"):
            return tuple(items)
        cls = type(value)
        if found(cls.__module__, cls.__qualname__, cls._fields) is cls:
            return cls._make(items)
        return remade(cls.__name__, cls._fields, tuple(items))
    if isinstance(value, list):
        return [portable(item) for item in value]
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    return value


def _dtype(value: Any) -> Any:
    """TorchScript's number of a dtype as the dtype."""
    if not isinstance(value, int):
        return value
    return torch.ops.aten.empty.memory_format([0], dtype=value).dtype


def _rebuild(annotation: Any) -> Rebuild | None:
    """What makes a value of plain tuples one of this type; None where there is nothing to do."""
    if is_named_tuple(annotation):
        fields = [_rebuild(one) for one in field_types(annotation)]
        return lambda value: annotation._make(_each(fields, value))
    if annotation is torch.dtype:
        return _dtype
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


@functools.cache
def result_of(annotated: Callable[..., Any]) -> Rebuild:
    """What gives a result of ``annotated`` the classes that its annotation names."""
    try:
        made = _rebuild(typing.get_type_hints(annotated).get("return"))
    except (NameError, TypeError):
        made = None
    return made or (lambda value: value)


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
