"""Types that annotations name, for values that travel without them: NamedTuples arrive as plain tuples,
dtypes as numbers.
"""

from __future__ import annotations

import collections.abc
import functools
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


def holds_names(annotation: Any) -> bool:
    """Whether NamedTuples are in it, at any depth."""
    return is_named_tuple(annotation) or any(
        holds_names(one) for one in typing.get_args(annotation)
    )


@functools.cache
def _dtypes() -> dict[int, torch.dtype]:
    """By TorchScript's numbers, which it makes of dtypes that an operator takes as numbers."""
    known = (one for one in vars(torch).values() if isinstance(one, torch.dtype))
    return {torch.ops.aten.add.int(one, 0): one for one in known}


def dtype_of(value: Any) -> Any:
    """TorchScript's number of a dtype as the dtype. Peers choose it, and torch checks no number."""
    if type(value) is not int:
        return value
    if value not in _dtypes():
        raise ValueError(f"{value} is not the number of a dtype")
    return _dtypes()[value]


def _rebuild(annotation: Any) -> Rebuild | None:
    """A function that turns plain tuples into this type; None if there is nothing to do."""
    if is_named_tuple(annotation):
        fields = [_rebuild(one) for one in field_types(annotation)]
        return lambda value: annotation._make(rebuild_each(fields, _fitting(annotation, value)))
    if annotation is torch.dtype:
        return dtype_of
    kind, inner = kind_of(annotation)
    parts = [_rebuild(one) for one in inner]
    return CONTAINERS[kind](parts) if kind and any(parts) else None


def _fitting(named: Any, value: Any) -> Any:
    """``value``, which must be a tuple with the fields' number of values."""
    if not isinstance(value, tuple) or len(value) != len(named._fields):
        raise ValueError(f"{value!r} is no {named.__name__}, which has {len(named._fields)} fields")
    return value


def kind_of(annotation: Any) -> tuple[str, list[Any]]:
    """The kind of container and the types of its values; "" for others and for ambiguous types."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (list, collections.abc.Sequence) and inner:
        return "list", [inner[0]]
    if origin in (dict, collections.abc.Mapping) and inner:
        return "dict", [inner[1]]
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return "tuples", [inner[0]]
    if origin is tuple:
        return "tuple", list(inner)
    if origin in (typing.Union, types.UnionType) and len(inner) == 2 and type(None) in inner:
        return "optional", [one for one in inner if one is not type(None)]
    return "", []


# By kind: makes the function for a container from the functions for its values.
CONTAINERS: dict[str, Callable[[list[Any]], Rebuild]] = {
    "list": lambda parts: lambda value: [parts[0](item) for item in value],
    "dict": lambda parts: lambda value: {key: parts[0](item) for key, item in value.items()},
    "tuple": lambda parts: lambda value: tuple(rebuild_each(parts, value)),
    "tuples": lambda parts: lambda value: tuple(parts[0](item) for item in value),
    "optional": lambda parts: lambda value: None if value is None else parts[0](value),
}


def rebuild_each(parts: list[Rebuild | None], values: Any) -> list[Any]:
    return [
        value if part is None else part(value) for part, value in zip(parts, values, strict=True)
    ]


def hints_of(annotated: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a callable: also of a callable object and behind functools.partial."""
    while isinstance(annotated, functools.partial):
        annotated = annotated.func
    if not isinstance(annotated, type) and not inspect.isroutine(annotated):
        annotated = type(annotated).__call__
    return typing.get_type_hints(annotated)


@functools.cache
def result_of(annotated: Callable[..., Any]) -> Rebuild:
    """A function that gives a result of ``annotated`` the classes that its annotation names."""
    try:
        made = _rebuild(hints_of(annotated).get("return"))
    except Exception:  # annotations are any expressions, and a NamedTuple may hold itself
        made = None
    return made or (lambda value: value)


def _argument(parameter: inspect.Parameter, hint: Any, made: Rebuild | None) -> Rebuild | None:
    """What makes the value that ``bind`` has for a parameter the type that is annotated.

    ``made`` does so for one value of that type.
    """
    if hint in (torch.layout, torch.qscheme):
        raise TypeError(
            f"parameter '{parameter.name}' cannot be published with the annotation {hint!r}: it would "
            "arrive as a number; take its name, and look it up: getattr(torch, name)"
        )
    if made is None:
        if holds_names(hint):
            raise TypeError(
                f"parameter '{parameter.name}' cannot be published with the annotation {hint!r}: a "
                "NamedTuple arrives as a plain tuple, which does not tell the type; NamedTuples may be in "
                "lists, dicts, tuples and Optionals"
            )
        return None
    if parameter.kind is parameter.VAR_POSITIONAL:
        return CONTAINERS["tuples"]([made])
    if parameter.kind is parameter.VAR_KEYWORD:
        return CONTAINERS["dict"]([made])
    # `p: P = None` is an Optional to everybody but the typing module.
    return CONTAINERS["optional"]([made])


def _made(name: str, made: Rebuild, value: Any) -> Any:
    try:
        return made(value)
    except ValueError as error:
        raise ValueError(f"argument '{name}': {error}") from None


def restoring(function: Callable[..., Any], annotated: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called with NamedTuples where the annotations of ``annotated`` name them.

    The function itself if there are none, or if the annotations cannot be read.

    Raises:
        TypeError: an annotation has a NamedTuple where a plain tuple does not tell of which type it is.
    """
    try:
        hints = hints_of(annotated)
        signature = inspect.signature(annotated)
        values = {name: _rebuild(hints.get(name)) for name in signature.parameters}
    except Exception:  # as in result_of
        return function
    rebuild = {
        name: made
        for name, parameter in signature.parameters.items()
        if (made := _argument(parameter, hints.get(name), values[name])) is not None
    }
    if not rebuild:
        return function

    def restored(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, made in rebuild.items():
            if name in bound.arguments:
                bound.arguments[name] = _made(name, made, bound.arguments[name])
        return function(*bound.args, **bound.kwargs)

    return restored
