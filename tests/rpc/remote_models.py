"""Modules that the tests of weft.RemoteModule place on other workers."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from named_models import Batch, Report, Scores
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


class Named(nn.Module):
    """NamedTuples in, inside a container as well, and out."""

    def forward(self, batch: Batch, more: Optional[list[Batch]] = None) -> Scores:  # noqa: UP045
        x = batch.x * batch.weight
        if more is not None:
            for one in more:
                x = x + one.x * one.weight
        return Scores(x, [int(x.argmax())])


class UsesNamed(nn.Module):
    def __init__(self, remote: nn.Module) -> None:
        super().__init__()
        self.remote = remote

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        now = self.remote(Batch(x, 2.0))
        later = self.remote.forward_async(Batch(now.values, 3.0), [Batch(x, 1.0)]).wait()
        return later.values, later.best[0]


class Contained(nn.Module):
    """NamedTuples in every place that TorchScript has for them."""

    def forward(
        self,
        batches: dict[str, list[Batch]],
        pair: Optional[tuple[Batch, int]] = None,  # noqa: UP045
    ) -> tuple[Report, dict[str, list[Scores]], Optional[Scores]]:  # noqa: UP045
        every: dict[str, list[Scores]] = {}
        flat: list[Scores] = []
        for name, ones in batches.items():
            every[name] = [Scores(one.x * one.weight, [len(ones)]) for one in ones]
            flat.extend(every[name])
        some: Optional[Scores] = None  # noqa: UP045
        if pair is not None:
            some = Scores(pair[0].x, [pair[1]])
        return Report(flat[0], flat), every, some

    @torch.jit.export
    def one(self, x: Tensor) -> Scores:
        return Scores(x, [7])


class UsesContained(nn.Module):
    def __init__(self, remote: nn.Module) -> None:
        super().__init__()
        self.remote = remote

    def forward(self, x: Tensor) -> tuple[Tensor, list[int]]:
        batches = {"a": [Batch(x, 1.0), Batch(x, 2.0)], "b": [Batch(x, 3.0)]}
        report, every, some = self.remote(batches, (Batch(x, 4.0), 5))
        assert some is not None
        total = report.best.values + report.all[2].values + every["a"][1].values + some.values
        return total, report.all[0].best + every["b"][0].best + some.best


class Late(NamedTuple):
    """With annotations as text, here: TorchScript cannot read it inside a container."""

    x: Tensor
    n: int


class TakesLate(nn.Module):
    def forward(self, late: Late, more: list[Late]) -> list[Late]:
        return [Late(late.x + one.x, late.n + one.n) for one in more]


class UsesLate(nn.Module):
    def __init__(self, remote: nn.Module) -> None:
        super().__init__()
        self.remote = remote

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        (late,) = self.remote((x, 1), [(x, 2)])
        return late.x, late.n


class Keywords(nn.Module):
    """What else TorchScript has for arguments."""

    def forward(
        self,
        x: Tensor,
        by: float,
        shape: tuple[int, int] = (1, 2),
        table: Optional[dict[str, list[Tensor]]] = None,  # noqa: UP045
        names: Optional[list[str]] = None,  # noqa: UP045
        none: Optional[int] = None,  # noqa: UP045
        *,
        flag: bool = True,
        limit: float = float("inf"),
    ) -> dict[str, tuple[Tensor, Optional[int]]]:  # noqa: UP045
        total = x * by + float(shape[0] * shape[1])
        if table is not None:
            for values in table.values():
                for value in values:
                    total = total + value
        if not flag or limit < 1.0:
            total = -total
        chosen = ["a"] if names is None else names
        return dict.fromkeys(chosen, (total, none))


class UsesKeywords(nn.Module):
    def __init__(self, remote: nn.Module) -> None:
        super().__init__()
        self.remote = remote

    def forward(self, x: Tensor) -> dict[str, tuple[Tensor, Optional[int]]]:  # noqa: UP045
        first = self.remote(x, 2.0)["a"][0]
        return self.remote(
            first, by=3.0, table={"k": [x, x]}, names=["b", "c"], none=4, limit=0.5, shape=(2, 2)
        )


class Where(nn.Module):
    """On which device its inputs are."""

    def forward(self, x: Tensor, others: dict[str, list[Tensor]]) -> str:
        return str(x.device) + " " + str(others["a"][0].device)


class AsksWhere(nn.Module):
    def __init__(self, remote: nn.Module) -> None:
        super().__init__()
        self.remote = remote

    def forward(self, x: Tensor) -> str:
        return self.remote(x, {"a": [x]})


class Unannotated(nn.Module):
    def forward(self, x: Tensor):
        return x


class MutableDefault(nn.Module):
    def forward(self, x: Tensor, names: list[str] = []) -> Tensor:  # noqa: B006
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
