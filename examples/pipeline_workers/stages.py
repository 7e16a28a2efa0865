"""The stages' workers: processes that are started, killed on purpose, and started again.

What the workers unpickle is here too: a class of the program that is run, ``__main__``, is another's
there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

NAMES = ("stage1", "stage2")  # stage 0 is the driver's


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


class Workers:
    """One process for each name; all end when the ``with`` block does."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self._names = tuple(names)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()

    def __enter__(self) -> Workers:
        for name in self._names:
            self.start(name)
        return self

    def start(self, name: str) -> None:
        """Starts one. MASTER_ADDR and MASTER_PORT in the environment say where the group meets."""
        rank, size = self._names.index(name) + 1, len(self._names) + 1
        place = ["--rank", str(rank), "--world-size", str(size)]
        command = [sys.executable, "-m", "weft.worker", name, *place]
        self._processes[name] = subprocess.Popen(command)

    def kill(self, name: str) -> None:
        """kill -9."""
        self._killed.add(name)
        self._processes[name].kill()

    def start_the_killed_again(self) -> bool:
        """Whether there were any."""
        killed, self._killed = self._killed, set()
        for name in killed:
            self._processes[name].wait()
            self.start(name)
        return bool(killed)

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
