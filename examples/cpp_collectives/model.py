"""A model that talks to the other ranks while it runs: each column standardised over everybody's rows.

``python -m examples.cpp_collectives.model model.pt`` saves it, for Python and C++ ranks alike.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import weft  # noqa: F401 - brings torch.ops.weft


class Standardised(nn.Module):
    """(x - mean) / deviation, where both are those of everybody's rows together."""

    def __init__(self, group: str = "0") -> None:
        super().__init__()
        self.group = group  # the name of the default group, in Python and in C++

    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops.weft
        # How many rows there are comes while the sums are made here.
        rows = ops.all_reduce_async(torch.full([1], float(x.shape[0])), "sum", self.group)
        total = ops.all_reduce(x.sum(0), "sum", self.group)
        count = torch.jit._wait(rows)
        apart = x - total / count
        variance = ops.all_reduce(apart.square().sum(0), "sum", self.group) / count
        return apart / torch.sqrt(variance)


def main() -> None:
    """Command line."""
    torch.jit.script(Standardised()).save(sys.argv[1])


if __name__ == "__main__":
    main()
