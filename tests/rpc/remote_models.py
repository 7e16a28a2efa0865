"""Modules that the tests of weft.RemoteModule place on other workers."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, nn


class Scaled(nn.Module):
    """Linear, with every kind of argument TorchScript knows."""

    def __init__(self, width: int = 4, *, start: float = 0.5) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.linear = nn.Linear(width, 3)
        self.norm = nn.BatchNorm1d(3)
        self.start = start

    def forward(
        self,
        x: Tensor,
        scale: float = 2.0,
        shifts: Optional[list[Tensor]] = None,  # noqa: UP045 - TorchScript's spelling
        twice: bool = False,
    ) -> Tensor:
        y = self.linear(x) * scale + self.start
        if shifts is not None:
            for shift in shifts:
                y = y + shift
        return y * 2 if twice else y

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return self.linear(x)

    @torch.jit.ignore
    def mode(self) -> bool:
        return self.norm.training


class ByName(nn.Module):
    def forward(self, x: Tensor, *, twice: bool = False) -> Tensor:
        return x * 2 if twice else x


class Disordered(nn.Module):
    def forward(self, x: Tensor, scale: float = 1.0, *, by: int, twice: bool = False) -> Tensor:
        return x


class Doubling(nn.Module):
    def __init__(self, remote: nn.Module) -> None:
        super().__init__()
        self.remote = remote

    def forward(self, x: Tensor) -> Tensor:
        return self.remote(x, twice=True)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, items: dict[str, Tensor], order: list[int]) -> tuple[Tensor, int]:
        return self.linear(items["x"]), sum(order)


class Unannotated(nn.Module):
    def forward(self, x: Tensor):
        return x


class Variadic(nn.Module):
    def forward(self, *xs: Tensor) -> Tensor:
        return xs[0]


class OfItsOwn:
    pass


class OwnType(nn.Module):
    def forward(self, x: OfItsOwn) -> Tensor:
        return torch.ones(1)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        raise ValueError("this module cannot be made")


class Hybrid(nn.Module):
    """A local layer before a remote one."""

    def __init__(self, remote: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.local = nn.Linear(2, 4)
        self.remote = remote

    def forward(self, x: Tensor) -> Tensor:
        return self.remote(self.local(x))


class HybridAsync(nn.Module):
    def __init__(self, remote: nn.Module) -> None:
        super().__init__()
        self.remote = remote

    def forward(self, x: Tensor) -> Tensor:
        pending = self.remote.forward_async(x, 3.0, twice=True)
        return pending.wait() + 1
