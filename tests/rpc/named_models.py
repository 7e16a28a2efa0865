"""NamedTuples of the tests' models. Without `from __future__ import annotations`: TorchScript cannot read the
fields of one inside a container when they are text."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    x: Tensor
    weight: float


class Scores(NamedTuple):
    values: Tensor
    best: list[int]


class Report(NamedTuple):
    """One inside another."""

    best: Scores
    all: list[Scores]
