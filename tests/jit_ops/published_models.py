"""Modules that the tests publish and call."""

from __future__ import annotations

import enum
from typing import Any

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """Two layers with fixed random weights."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(3, 4, generator=generator))
        self.second = nn.Parameter(torch.randn(4, 2, generator=generator))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return torch.tanh(x @ self.first) @ self.second * scale

    @torch.jit.export
    def later(self, x: Tensor) -> torch.jit.Future[Tensor]:
        return torch.jit.fork(self.forward, x, 1.0)

    @torch.jit.export
    def rows(self, x: Tensor) -> int:
        return x.shape[0]


class Echo(nn.Module):
    """One method for each kind of value."""

    def forward(self, x: Tensor) -> Tensor:
        return x

    @torch.jit.export
    def optional(self, x: Tensor | None) -> Tensor | None:
        return x

    @torch.jit.export
    def floats(self, x: list[float]) -> list[float]:
        return x

    @torch.jit.export
    def nested(self, x: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
        return x

    @torch.jit.export
    def pair(self, x: tuple[int, str | None]) -> tuple[int, str | None]:
        return x

    @torch.jit.export
    def flag(self, x: bool = True, y: str = "a") -> tuple[bool, str]:
        return x, y

    @torch.jit.export
    def union(self, x: list[float] | list[int]) -> str:
        return "ints" if isinstance(x, list[int]) else "floats"

    @torch.jit.export
    def anything(self, x: Any) -> str:
        if isinstance(x, list[int]):
            return "ints"
        if isinstance(x, dict[str, list[float]]):
            return "floats by name"
        return "another"

    @torch.jit.export
    def fails(self, x: Tensor) -> Tensor:
        raise ValueError("the module says no")
        return x


def doubles_input(self: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] * 2,)


def adds_ten(self: nn.Module, given: tuple[Tensor], result: Tensor) -> Tensor:
    return result + 10


class Hooked(nn.Module):
    """A forward with scripted hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_forward_pre_hook(doubles_input)
        self.register_forward_hook(adds_ten)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1

    @torch.jit.export
    def plain(self, x: Tensor) -> Tensor:
        return x


class Color(enum.Enum):
    RED = 1


@torch.jit.script
class Place:
    def __init__(self, x: int) -> None:
        self.x = x


class Unsendable(nn.Module):
    """Returns and takes members of an enum, and objects of a class."""

    def forward(self, x: Tensor) -> Color:
        return Color.RED

    @torch.jit.export
    def listed(self, x: Tensor) -> dict[str, list[Color]]:
        return {"a": [Color.RED]}

    @torch.jit.export
    def later(self, x: Tensor) -> torch.jit.Future[Color]:
        return torch.jit.fork(self.forward, x)

    @torch.jit.export
    def place(self, x: Tensor) -> Place:
        return Place(3)

    @torch.jit.export
    def sends(self, what: str) -> Any:
        args: list[Any] = []
        if what == "enum":
            args.append(Color.RED)
        elif what == "list":
            args.append([Color.RED])
        else:
            args.append(1)
            args.append(Place(1))
        return torch.ops.weft.call("worker0", "encoder", args)


class Asker(nn.Module):
    """Asks about its call."""

    def __init__(self) -> None:
        super().__init__()
        self.ended_by_itself = False

    def forward(self) -> tuple[float | None, bool]:
        return torch.ops.weft.deadline(), torch.ops.weft.cancelled()

    @torch.jit.export
    def until_cancelled(self) -> int:
        rounds = 0
        while not torch.ops.weft.cancelled():
            rounds += 1
        self.ended_by_itself = True
        return rounds

    @torch.jit.export
    def ended(self) -> bool:
        return self.ended_by_itself


class Client(nn.Module):
    """Calls "encoder" at worker0 in every way that TorchScript has, and is saved and loaded."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        like: list[Tensor] = []
        numbers: list[int] = []
        args: list[Any] = [x]
        later = torch.ops.weft.call_async("worker0", "encoder", args, like)
        there = torch.ops.weft.remote("worker0", "encoder", args, like)
        now = torch.ops.weft.call("worker0", "encoder", args, like)
        rows = torch.ops.weft.call("worker0", "encoder", args, numbers, method="rows")
        return now, torch.jit._wait(later), torch.ops.weft.fetch(there), rows


class Typed(nn.Module):
    """Typed results other than tensors, keyword arguments."""

    def forward(self, x: Tensor) -> tuple[dict[str, list[Tensor]], tuple[bool, str]]:
        nested: list[dict[str, list[Tensor]]] = []
        flags: list[tuple[bool, str]] = []
        values: dict[str, list[Tensor]] = {"a": [x, x + 1]}
        args: list[Any] = [values]
        named: list[Any] = ["b"]
        dict_back = torch.ops.weft.call("worker0", "echo", args, nested, method="nested")
        flag = torch.ops.weft.call("worker0", "echo", named, flags, method="flag", names=["y"])
        return dict_back, flag


class Wrong(nn.Module):
    """Expects a number where a tensor comes."""

    def forward(self, x: Tensor) -> float:
        like: list[float] = []
        args: list[Any] = [x]
        return torch.ops.weft.call("worker0", "encoder", args, like)
