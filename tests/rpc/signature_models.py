"""Modules for the tests of scripted remote modules: names, defaults and states that are easily taken wrongly.

Without `from __future__ import annotations`: see named_models.py.
"""

import enum
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.distributed.rpc import RRef

import weft


class TakesLike(nn.Module):
    def forward(self, x: Tensor, like: list[int], args: int) -> int:
        return sum(like) + args


class TakesModules(nn.Module):
    """Parameters called as what TorchScript code is usually made of."""

    def forward(self, torch: Tensor, List: Tensor, Any: Tensor) -> Tensor:
        return torch + List + Any


class TakesReserved(nn.Module):
    def forward(self, _weft_args: Tensor) -> Tensor:
        return _weft_args


class Number(enum.IntEnum):
    SEVEN = 7


class Half(float):
    """Its repr is no Python, as NumPy's numbers have it."""

    def __repr__(self) -> str:
        return "np.float64(0.5)"


class Word(str):
    def __repr__(self) -> str:
        return "Word"


class Defaults(nn.Module):
    def forward(
        self, n: int = Number.SEVEN, f: float = Half(0.5), s: str = Word("a"), z: float = -0.0
    ) -> tuple[int, float, str, float]:
        return n, f, s, z


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class ComplexDefault(nn.Module):
    def forward(self, z: complex = complex(-0.0, float("inf"))) -> complex:
        return z


class Static(nn.Module):
    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return x + y


class ReturnsFuture(nn.Module):
    def forward(self, x: Tensor) -> torch.jit.Future[Tensor]:
        return torch.jit.fork(torch.relu, x)


class Pair(NamedTuple):
    a: int
    b: int


class NamedDefault(nn.Module):
    def forward(self, x: Tensor, p: Pair = Pair(1, 2)) -> Tensor:  # noqa: B008
        return x * p.a


class TakesReferences(nn.Module):
    def forward(self, x: RRef[Tensor], more: list[RRef[Tensor]]) -> Tensor:
        return x.to_here() + more[0].to_here()


class TakesGenerator(nn.Module):
    def forward(self, x: Tensor, source: torch.Generator) -> Tensor:
        return x


class GivesStreams(nn.Module):
    def forward(self, x: Tensor) -> list[torch.Stream]:
        return []


class TakesItself(NamedTuple):
    """A NamedTuple that holds itself."""

    x: Tensor
    more: Optional["TakesItself"] = None


class TakesTree(nn.Module):
    def forward(self, tree: TakesItself) -> Tensor:
        return tree.x


class TakesUnreadable(nn.Module):
    def forward(self, x: "a tensor", y: "torch.no_such_type") -> "1 / 0":  # noqa: F722
        return x


class WithoutForward(nn.Module):
    @torch.jit.export
    def double(self, x: Tensor) -> Tensor:
        return x * 2


class Doubled(weft.RemoteModule):
    """A subclass of a user."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Versioned(nn.Module):
    """Its first version had the weight the other way round."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(4.0).reshape(2, 2))

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *more):
        if local_metadata.get("version", 1) < 2:
            state_dict[prefix + "weight"] = state_dict[prefix + "weight"].t()
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *more)


def nested() -> nn.Module:
    return nn.Sequential(Versioned())


def made_in_eval_mode() -> nn.Module:
    return nn.Dropout().eval()
