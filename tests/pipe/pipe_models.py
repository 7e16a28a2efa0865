"""Small models and helpers that the tests of the engine share."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from weft import _C, Pipe

# Threads of OpenMP would be counted with a Pipe's.
torch.set_num_threads(1)
# Nor those that autograd starts with its first backward.
torch.ones(1, requires_grad=True).sum().backward()

MODES = ("never", "except_last", "always")
WAYS = ("inline", "threads")


class F(nn.Module):
    """A function as a stage, with a weight so that there is something to learn."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.5))
        self.function = function

    def forward(self, *args):
        return self.function(self.weight, *args)


def make_pipe(module: nn.Sequential, way: str = "auto", **arguments) -> Pipe:
    """A Pipe whose tasks run the given way: on threads of their own, or on the caller's."""
    pipe = Pipe(module, **arguments)
    pipe._engine.set_threading(getattr(_C.pipe.Threading, way))
    return pipe


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 3))


class PipeAsLayer(nn.Module):
    """A Pipe as a layer of another."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = pipe

    def forward(self, x: Tensor) -> Tensor:
        return self.pipe(x).local_value()


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Softplus())


def piped(mode: str, way: str, make=small, chunks: int = 3) -> tuple[nn.Module, PipeAsLayer]:
    """A plain model, and the same as a layer that is a Pipe."""
    plain = make()
    return plain, PipeAsLayer(make_pipe(plain_copy(plain), way, chunks=chunks, checkpoint=mode))


class Counter(nn.Module):
    """Counts its forwards, and the recomputations among them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.forwards = 0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        return self.linear(x).tanh()


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def plain_copy(module: nn.Sequential) -> nn.Sequential:
    return copy.deepcopy(module)


def assert_same(found, expected, **tolerance) -> None:
    torch.testing.assert_close(found, expected, **({"atol": 1e-6, "rtol": 1e-5} | tolerance))
