"""Modules that the tests of weft.RemoteModule place on other workers."""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

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

    @torch.jit.ignore
    def learn(self, x: Tensor) -> None:
        self.forward(x).square().sum().backward()


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


class TakesMethod(nn.Module):
    """Takes an argument by a name that Weft's own functions have."""

    def forward(self, times: int, *, method: str) -> str:
        return method * times


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


class Forms:
    """A module for each kind of argument, by name."""

    class Plain(nn.Module):
        def forward(self, x: Tensor, n: int, f: float, b: bool, s: str) -> str:
            return s + str(int(x.sum())) + str(n) + str(int(f)) + str(b)

    class Device(nn.Module):
        def forward(self, d: torch.device, t: torch.dtype = torch.float64) -> Tensor:
            return torch.ones(1, device=d, dtype=t)

    class Complex(nn.Module):
        def forward(self, c: complex) -> complex:
            return c * 2

    class Lists(nn.Module):
        def forward(self, a: list[int], b: list[list[float]], c: list[Tensor]) -> list[Tensor]:
            return [c[0] * len(a), c[0] * b[0][1]]

    class Dicts(nn.Module):
        def forward(self, a: dict[int, str], b: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
            return {a[1]: b["k"]["v"]}

    class Tuples(nn.Module):
        def forward(self, a: tuple[int, tuple[str, Tensor]]) -> tuple[str, int]:
            return a[1][0], a[0]

    class Optionals(nn.Module):
        def forward(
            self,
            a: Optional[int],  # noqa: UP045
            b: Optional[list[Optional[Tensor]]] = None,  # noqa: UP045
            c: str | None = None,
        ) -> tuple[bool, int, Optional[str]]:  # noqa: UP045
            return a is None, 0 if b is None else len(b), c

    class Unions(nn.Module):
        def forward(self, a: Union[int, str]) -> bool:  # noqa: UP007
            return isinstance(a, int)

    class Defaults(nn.Module):
        def forward(
            self,
            a: int = -1,
            b: float = float("-inf"),
            c: str = 'it\'s "quoted"\n',
            d: tuple[int, tuple[float, str]] = (1, (-2.5, "x")),
            e: tuple[int] = (3,),
            f: bool = False,
        ) -> tuple[int, float, str, tuple[int, tuple[float, str]], int, bool]:
            return a, b, c, d, e[0], f

    class KeywordOnly(nn.Module):
        def forward(self, x: Tensor, *, by: float, over: int) -> Tensor:
            return x * by / over

    class Nothing(nn.Module):
        def forward(self) -> int:
            return 3

    class GivesNone(nn.Module):
        def forward(self, x: Tensor) -> None:
            return None

    class Unannotated(nn.Module):
        def forward(self, x, y) -> Tensor:  # tensors, then, as in TorchScript
            return x + y

    class Inherited(Nothing):
        pass


class Ask(nn.Module):
    """A caller for each of Forms."""

    class Plain(nn.Module):
        def __init__(self, remote: nn.Module) -> None:
            super().__init__()
            self.remote = remote

        def forward(self) -> str:
            return self.remote(torch.ones(2), 3, 4.0, b=True, s="s")

    class Device(Plain):
        def forward(self) -> tuple[Tensor, Tensor]:
            there = torch.device("cpu")
            return self.remote(there), self.remote(there, torch.float32)

    class Complex(Plain):
        def forward(self) -> complex:
            return self.remote(complex(1, 2))

    class Lists(Plain):
        def forward(self) -> list[Tensor]:
            return self.remote([1, 2], [[1.0, 5.0]], [torch.ones(1)])

    class Dicts(Plain):
        def forward(self) -> dict[str, Tensor]:
            return self.remote({1: "one"}, {"k": {"v": torch.ones(2)}})

    class Tuples(Plain):
        def forward(self) -> tuple[str, int]:
            return self.remote((1, ("a", torch.ones(1))))

    class Optionals(Plain):
        def forward(self) -> list[tuple[bool, int, Optional[str]]]:  # noqa: UP045
            return [self.remote(None), self.remote(1, [None, torch.ones(1)], c="c")]

    class Unions(Plain):
        def forward(self) -> tuple[bool, bool]:
            return self.remote(1), self.remote("1")

    class Defaults(Plain):
        def forward(self) -> tuple[int, float, str, tuple[int, tuple[float, str]], int, bool]:
            return self.remote()

    class KeywordOnly(Plain):
        def forward(self) -> Tensor:
            return self.remote(torch.ones(1), over=4, by=2.0)

    class Nothing(Plain):
        def forward(self) -> int:
            return self.remote()

    class GivesNone(Plain):
        def forward(self) -> bool:
            return self.remote(torch.ones(1)) is None

    class Unannotated(Plain):
        def forward(self) -> Tensor:
            return self.remote(torch.ones(1), torch.ones(1))

    class Inherited(Nothing):
        pass


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
