"""Cuts a row of costs into consecutive parts, with the most expensive part as cheap as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate


def _best(layers: int, parts: int, value: Callable[[int, int, int], float], combine) -> list[int]:
    """Lengths of the parts with the least combined value: dynamic programming, O(parts layers^2)."""
    # best[end]: the least value of layers 0..end-1 in the parts so far; cuts[k][end]: where the
    # last of them began.
    best = [0.0] + [math.inf] * layers
    cuts: list[list[int]] = []
    for part in range(parts):
        row, cut = [math.inf] * (layers + 1), [part] * (layers + 1)
        for end in range(part + 1, layers + 1):
            for begin in range(part, end):
                candidate = combine(best[begin], value(part, begin, end))
                if candidate < row[end]:
                    row[end], cut[end] = candidate, begin
        best = row
        cuts.append(cut)
    lengths, end = [], layers
    for cut in reversed(cuts):
        lengths.append(end - cut[end])
        end = cut[end]
    return lengths[::-1]


def split_evenly(costs: Sequence[Sequence[float]]) -> list[int]:
    """How many layers each part gets; `costs[k][i]` is the cost of layer i in part k, at least 0.

    Optimal: no other cut has a cheaper most expensive part, and among equally good ones this is the
    most even (least sum of squares). Every part has at least one layer.
    """
    parts, layers = len(costs), len(costs[0])
    sums = [[0.0, *accumulate(row)] for row in costs]

    def cost(part: int, begin: int, end: int) -> float:
        return sums[part][end] - sums[part][begin]

    first = _best(layers, parts, cost, max)
    ends = list(accumulate(first))
    dearest = max(cost(k, end - first[k], end) for k, end in enumerate(ends))
    limit = dearest * (1 + 1e-9)  # sums of floats

    def square(part: int, begin: int, end: int) -> float:
        here = cost(part, begin, end)
        return here * here if here <= limit else math.inf

    return _best(layers, parts, square, lambda a, b: a + b)
