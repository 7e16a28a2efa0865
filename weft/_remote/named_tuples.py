"""NamedTuples of remote calls. They travel as plain tuples, because a peer may lack the class.

This module finds and describes their classes, and gives results the names that come beside them.
"""

from __future__ import annotations

import collections
import collections.abc
import functools
import json
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from weft._remote.annotations import (
    CONTAINERS,
    Rebuild,
    dtype_of,
    field_types,
    hints_of,
    is_named_tuple,
    kind_of,
    rebuild_each,
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
        return _part(hints_of(annotated).get("return"))
    except Exception:  # as in annotations.result_of
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
    kind, inner = kind_of(annotation)
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
        return dtype_of
    if part[0] != "tuple":
        return CONTAINERS[part[0]]([_naming(part[1])])
    _, name, fields, inner = part
    parts = [_naming(one) for one in inner]
    if name is None:
        return CONTAINERS["tuple"](parts)
    cls = class_called(name)
    if cls is None or cls._fields != tuple(fields):
        cls = _stand_in(_words(name)[-1], tuple(fields))
    return lambda value: cls._make(rebuild_each(parts, value))
