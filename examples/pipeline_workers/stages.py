"""What the workers unpickle: a class of the program that is run, ``__main__``, is another's there."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn


class Loss(nn.Module):
    """Cross entropy of the next character, in nats."""

    def forward(self, scores: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())


class _Slow(torch.autograd.Function):
    """Waits in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradients[0], None


class Wait(nn.Module):
    """A layer that only takes time, so that a machine with few cores shows the schedule.

    It waits as long in its forward, for the gradient of its input and for that of its factor.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.factor = nn.Parameter(torch.ones(()))
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        x = _Slow.apply(x + self.offset, self.seconds)
        return x * _Slow.apply(self.factor, self.seconds)


class Sum(nn.Module):
    """A loss that costs next to nothing."""

    reduction = "sum"

    def forward(self, output: Tensor, _target: Tensor) -> Tensor:
        return output.sum()
