"""Poles on carts, several at once: Barto, Sutton and Anderson 1983, as Gym's CartPole has it."""

from __future__ import annotations

import torch
from torch import Tensor

LIMIT = 200  # steps of an episode
FORCE, STEP = 10.0, 0.02  # newtons, seconds


class CartPoles:
    """Environments side by side. A pole that falls, or stood for LIMIT steps, begins again."""

    def __init__(self, count: int, generator: torch.Generator) -> None:
        self._count, self._generator = count, generator
        self._ages = torch.zeros(count)
        self.state = self._fresh()  # position, speed, angle, its speed

    def _fresh(self) -> Tensor:
        return (torch.rand(self._count, 4, generator=self._generator) - 0.5) / 10

    def step(self, right: Tensor) -> Tensor:
        """Pushes each cart to the right or to the left; says whose episode has ended."""
        _, speed, angle, spin = self.state.unbind(1)
        force = torch.where(right, FORCE, -FORCE)
        sin, cos = angle.sin(), angle.cos()
        push = (force + 0.05 * spin**2 * sin) / 1.1
        turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        move = push - 0.05 * turn * cos / 1.1
        self.state = self.state + STEP * torch.stack((speed, move, spin, turn), 1)
        self._ages += 1
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.209)
        ended = fallen | (self._ages >= LIMIT)
        self.state = torch.where(ended[:, None], self._fresh(), self.state)
        self._ages[ended] = 0
        return ended
