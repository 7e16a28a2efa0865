"""Python code that the tests publish: NamedTuples in its annotations.

Without `from __future__ import annotations`: typing changes the text of one that defaults to None.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor


class Point(NamedTuple):
    x: int
    y: int


def described(values) -> str:
    return ",".join(f"{type(value).__name__}{tuple(value)}" for value in values)


def positional(*points: Point) -> str:
    return described(points)


def by_name(**points: Point) -> str:
    return ",".join(points) + ":" + described(points.values())


def defaulted(point: Point = None) -> str:
    return "none" if point is None else described([point])


def many(points: tuple[Point, ...], more: Sequence[Point], named: Mapping[str, Point]) -> str:
    return described([*points, *more, *named.values()])


def several(point: Point) -> tuple[Point, ...]:
    return (point, point)


class Called:
    def __call__(self, point: Point, dtype: torch.dtype) -> Point:
        assert dtype is torch.float64
        return Point(*reversed(point))


def scaled(scale: int, point: Point) -> Point:
    return Point(point.x * scale, point.y * scale)


tripled = functools.partial(scaled, 3)


def ambiguous(point: Union[Point, Tensor]) -> int:  # noqa: UP007
    return 1


def of_a_missing_attribute(x: "torch.no_such_type") -> "torch.no_such_type":
    return x


def of_no_python(x: "a tensor") -> "1 / 0":  # noqa: F722
    return x


class Tree(NamedTuple):
    x: int
    more: Optional["Tree"] = None


def of_itself(x: Tree) -> Tree:
    return x


def dtype_of(x: Tensor) -> torch.dtype:
    return x.dtype


def cast(x: Tensor, to: torch.dtype) -> Tensor:
    return x.to(to)


def cast_as(x: Tensor, *, kinds: list[torch.dtype]) -> Tensor:
    return x.to(kinds[0])


def echo(kinds: list[torch.dtype]) -> list[torch.dtype]:
    return kinds


def wrong_dtype(number: int) -> torch.dtype:
    return number


def dtypes(x: Tensor) -> dict[str, list[torch.dtype]]:
    return {"a": [x.dtype, torch.int8]}


class Sized(NamedTuple):
    dtype: int


def field_called_dtype(x: Tensor) -> Sized:
    return Sized(x.dtype)


def unannotated_dtype(x):
    return [x.dtype]


def layout_of(x: Tensor):
    return {"a": x.layout}


def scheme() -> torch.qscheme:
    return torch.per_tensor_affine


def some_bytes():
    return {"a": (b"abc",)}


def marked():
    return ("__weft__.names", "abc", 5)
