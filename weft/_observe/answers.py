"""What other workers say of themselves, as plain values: it may be anything, and is shown to people."""

from __future__ import annotations

import dataclasses
import functools
import typing
from typing import Any

from weft._torch.printable import printable

_LARGEST = 1 << 64  # a number: longer ones are no figures, and Python cannot write all of them


def checked(value: Any, kind: Any, place: str = "answer") -> Any:
    """The value, if it is of this type; only what the type names of it, with printable texts.

    Args:
        kind: ``str``, ``int``, ``float``, a list, a dict or a tuple of one type, a dict of the
            types of its items, or a dataclass for such a dict.

    Raises:
        TypeError: something in it is of another type.
    """
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        kind = _fields(kind)
    if isinstance(kind, dict):
        _check(type(value) is dict, place, "dict")
        return {name: checked(value.get(name), one, name) for name, one in kind.items()}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is dict:
        _check(type(value) is dict, place, "dict")
        return {
            checked(key, inner[0], place): checked(one, inner[1], place)
            for key, one in value.items()
        }
    if origin is not None:
        _check(type(value) is origin, place, origin.__name__)
        return origin(checked(one, inner[0], place) for one in value)
    _check(type(value) in ((int, float) if kind is float else (kind,)), place, kind.__name__)
    if kind is str:
        return printable(value)
    _check(abs(value) < _LARGEST, place, kind.__name__)  # nor is NaN
    return value


@functools.cache
def _fields(of: Any) -> dict[str, Any]:
    return typing.get_type_hints(of)


def _check(fits: bool, place: str, kind: str) -> None:
    if not fits:
        raise TypeError(
            f"answers in another form than Weft's here: '{place}' is no {kind}; see that it runs "
            "the same version of Weft"
        )
