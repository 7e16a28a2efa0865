"""The stages that are measured. Needs torch alone, of any version."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

TINY, WIDE, STEADY = 8, 512, 768


def tiny() -> nn.Module:
    """Next to no work, so that what a task costs beside it shows."""
    return nn.Linear(TINY, TINY)


def busy() -> nn.Module:
    """Milliseconds of matrix products, which release the GIL."""
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE), nn.Tanh())


def steady() -> nn.Module:
    """Four products, for a run of many mini-batches."""
    return nn.Sequential(*(nn.Linear(STEADY, STEADY) for _ in range(4)))


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient * 1, None


class Asleep(nn.Module):
    """Takes its time both ways without using a core: overlap then depends on the scheduler alone."""

    def __init__(self, seconds: float = 0.005) -> None:
        super().__init__()
        self.seconds = seconds
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x * self.scale, self.seconds)


class Graphs:
    """Counts the stage graphs that are alive, now and at most."""

    alive = 0
    most = 0

    @classmethod
    def reset(cls) -> None:
        cls.most = cls.alive


class _Token:
    def __init__(self) -> None:
        Graphs.alive += 1
        Graphs.most = max(Graphs.most, Graphs.alive)

    def __del__(self) -> None:
        Graphs.alive -= 1


class _Hold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, token):
        ctx.token = token  # lives as long as the graph does
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Counted(nn.Module):
    """Keeps something alive as long as autograd keeps the activations of one run of the stage."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = tiny()

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return _Hold.apply(y, _Token()) if torch.is_grad_enabled() else y
