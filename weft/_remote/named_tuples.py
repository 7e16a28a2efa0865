"""NamedTuples of remote calls. They travel as plain tuples, because a peer may lack the class.

This module describes the NamedTuples of a signature, gives Python code the classes that its
annotations name (and dtypes, which TorchScript sends as numbers), and gives results the names that
come beside them.
"""

from __future__ import annotations

import collections
import collections.abc
import functools
import inspect
import json
import sys
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


def script_name(named: Any) -> str:
    """What TorchScript calls this class."""
    return f"__torch__.{named.__module__}.{named.__qualname__}"


def class_called(name: str) -> Any:
    """The NamedTuple that TorchScript calls ``__torch__.module.Name``, if this process has it; else None."""
    if not name.startswith("__torch__."):
        return None
    parts = _words(name)
    for split in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:split]))
        for part in parts[split:]:
            # Not getattr, which may run code or import a module: peers choose the name.
            held = isinstance(value, (types.ModuleType, type))
            value = vars(value).get(part) if held else None
        if is_named_tuple(value):
            return value
    return None


def _words(name: str) -> list[str]:
    """TorchScript's name of a class as module and class names."""
    return [part for part in name.split(".")[1:] if not part.startswith("___torch_mangle_")]


# Peers choose the names, and the classes are kept.
_MAX_FIELDS = 1000
_MAX_LETTERS = 1 << 14


@functools.lru_cache(maxsize=256)
def _stand_in(name: str, fields: tuple[str, ...]) -> Any:
    if len(fields) > _MAX_FIELDS or sum(map(len, (name, *fields))) > _MAX_LETTERS:
        raise ValueError(f"a NamedTuple of {len(fields)} fields, or of very long names")
    made = collections.namedtuple(name, fields)  # type: ignore[misc]
    made.__reduce__ = lambda self: (remade, (name, fields, tuple(self)))  # type: ignore[method-assign]
    return made


def remade(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    """A NamedTuple of a class of which only the name and the fields are known."""
    return _stand_in(name, fields)._make(values)


def picklable(value: Any) -> Any:
    """A value of TorchScript for other processes: its classes of NamedTuples cannot be pickled."""
    if isinstance(value, tuple):
        items = [picklable(item) for item in value]
        if not hasattr(value, "_fields"):
            return tuple(items)
        cls = type(value)
        if class_called(script_name(cls)) is cls:
            return cls._make(items)
        return remade(cls.__name__, cls._fields, tuple(items))
    if isinstance(value, list):
        return [picklable(item) for item in value]
    if isinstance(value, dict):
        return {key: picklable(item) for key, item in value.items()}
    return value


@functools.cache
def _dtypes() -> dict[int, torch.dtype]:
    """By TorchScript's numbers, which it makes of dtypes that an operator takes as numbers."""
    known = (one for one in vars(torch).values() if isinstance(one, torch.dtype))
    return {torch.ops.aten.add.int(one, 0): one for one in known}


def _dtype(value: Any) -> Any:
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
        return lambda value: annotation._make(_each(fields, _fitting(annotation, value)))
    if annotation is torch.dtype:
        return _dtype
    kind, inner = _kind(annotation)
    parts = [_rebuild(one) for one in inner]
    return _CONTAINERS[kind](parts) if kind and any(parts) else None


def _fitting(named: Any, value: Any) -> Any:
    """``value``, which must be a tuple with the fields' number of values."""
    if not isinstance(value, tuple) or len(value) != len(named._fields):
        raise ValueError(f"{value!r} is no {named.__name__}, which has {len(named._fields)} fields")
    return value


def _kind(annotation: Any) -> tuple[str, list[Any]]:
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
_CONTAINERS: dict[str, Callable[[list[Any]], Rebuild]] = {
    "list": lambda parts: lambda value: [parts[0](item) for item in value],
    "dict": lambda parts: lambda value: {key: parts[0](item) for key, item in value.items()},
    "tuple": lambda parts: lambda value: tuple(_each(parts, value)),
    "tuples": lambda parts: lambda value: tuple(parts[0](item) for item in value),
    "optional": lambda parts: lambda value: None if value is None else parts[0](value),
}


def _each(parts: list[Rebuild | None], values: Any) -> list[Any]:
    return [
        value if part is None else part(value) for part, value in zip(parts, values, strict=True)
    ]


def _hints(annotated: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a callable: also of a callable object and behind functools.partial."""
    while isinstance(annotated, functools.partial):
        annotated = annotated.func
    if not isinstance(annotated, type) and not inspect.isroutine(annotated):
        annotated = type(annotated).__call__
    return typing.get_type_hints(annotated)


def names_in(annotated: Callable[..., Any]) -> str:
    """The NamedTuples in what ``annotated`` returns, in the form of ``jit_ops/values/result_names.h``.

    Dtypes are among them, as ``["dtype"]``: TorchScript sends them as numbers.
    """
    part = part_of_result(annotated)
    return json.dumps(part) if part else ""


#: The part of a place where the caller gets a dtype back.
DTYPE = ["dtype"]


def part_of_result(annotated: Callable[..., Any]) -> Any:
    """What the caller makes again of the result: see :func:`names_in`. None: nothing."""
    try:
        return _part(_hints(annotated).get("return"))
    except (NameError, TypeError):
        return None


def part_of_item(part: Any, index: int) -> Any:
    """The part of an item, or a dict's value, of the container that ``part`` is of."""
    while part and part[0] == "optional":
        part = part[1]
    if not part or part == DTYPE:
        return None
    if part[0] == "tuple":
        return part[3][index] if index < len(part[3]) else None
    return part[1]


def _part(annotation: Any) -> Any:
    if annotation is torch.dtype:
        return DTYPE
    if is_named_tuple(annotation):
        parts = [_part(one) for one in field_types(annotation)]
        return ["tuple", script_name(annotation), annotation._fields, parts]
    kind, inner = _kind(annotation)
    parts = [_part(one) for one in inner]
    if not any(parts):
        return None
    return ["tuple", None, None, parts] if kind == "tuple" else [kind, parts[0]]


def named(names: str, value: Any) -> Any:
    """A result of plain tuples with the names that came beside it (:func:`names_in`).

    Its NamedTuples are of the classes that this process has under these names and with these fields, else of
    classes like them. A result of another form than its names say stays as it is.
    """
    try:
        naming = _naming(json.loads(names))
        return value if naming is None else naming(value)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return value


def _naming(part: Any) -> Rebuild | None:
    if part is None:
        return None
    if part[0] == "dtype":
        return _dtype
    if part[0] != "tuple":
        return _CONTAINERS[part[0]]([_naming(part[1])])
    _, name, fields, inner = part
    parts = [_naming(one) for one in inner]
    if name is None:
        return _CONTAINERS["tuple"](parts)
    cls = class_called(name)
    if cls is None or cls._fields != tuple(fields):
        cls = _stand_in(_words(name)[-1], tuple(fields))
    return lambda value: cls._make(_each(parts, value))


@functools.cache
def result_of(annotated: Callable[..., Any]) -> Rebuild:
    """A function that gives a result of ``annotated`` the classes that its annotation names."""
    try:
        made = _rebuild(_hints(annotated).get("return"))
    except (NameError, TypeError):
        made = None
    return made or (lambda value: value)


def _argument(parameter: inspect.Parameter, hint: Any) -> Rebuild | None:
    """What makes the value that ``bind`` has for a parameter the type that is annotated."""
    made = _rebuild(hint)
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
        return _CONTAINERS["tuples"]([made])
    if parameter.kind is parameter.VAR_KEYWORD:
        return _CONTAINERS["dict"]([made])
    # `p: P = None` is an Optional to everybody but the typing module.
    return _CONTAINERS["optional"]([made])


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
        hints = _hints(annotated)
        signature = inspect.signature(annotated)
    except (NameError, TypeError, ValueError):
        return function
    rebuild = {
        name: made
        for name, parameter in signature.parameters.items()
        if (made := _argument(parameter, hints.get(name))) is not None
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
