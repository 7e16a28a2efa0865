"""Random pipelines over workers: what one is made of, and how it is drawn."""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weft.pipe.skip import Namespace, pop, skippable, stash

WIDTH = 6


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Frozen(nn.Module):
    """Parameters that want no gradient, beside one that does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


class Twice(nn.Module):
    """One layer, one use after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Hooked(nn.Module):
    """Halves the gradient of what its layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient / 2)
        return y


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mul_(1.5).relu_()


class Passes(nn.Module):
    """Gives its first argument on to a layer, and the others as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *others: Any) -> tuple[Any, ...]:
        return self.layer(x), *others


class Opens(nn.Module):
    """Gives several values: some with a gradient, some without, one twice, some no tensors."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.kinds = kinds
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        y = self.layer(x)
        made: dict[str, Callable[[], Any]] = {
            "same": lambda: x,
            "other": lambda: y,
            "again": lambda: {"twice": [y, y]},
            "detached": lambda: x.detach() * 2,
            "numbers": lambda: torch.arange(x.size(0)),
            "nothing": lambda: None,
            "text": lambda: ("three", 3),
            "unused": lambda: torch.sigmoid(y),
        }
        return torch.tanh(x), *(made[kind]() for kind in self.kinds)


class Closes(nn.Module):
    """Joins what :class:`Opens` gave."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.kinds = kinds
        self.words = nn.Embedding(64, WIDTH)

    def forward(self, x: Tensor, *values: Any) -> Tensor:
        for kind, value in zip(self.kinds, values, strict=True):
            if kind in ("same", "other", "detached"):
                x = x + value
            elif kind == "again":
                first, second = value["twice"]
                x = x * first + second
            elif kind == "numbers":
                x = x + self.words(value)
            elif kind == "text":
                assert value[0] == "three"
                x = x * value[1]
        return x


@skippable(stash=["skip"])
class Stashes(nn.Module):
    """Stashes what it gives, what it got, or what wants no gradient."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *others: Any) -> Any:
        y = self.layer(x)
        yield stash(
            "skip", {"output": y, "input": x, "detached": x.detach() * 2, "none": None}[self.what]
        )
        return (y, *others) if others else y


@skippable(pop=["skip"])
class Pops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *others: Any) -> Any:
        skip = yield pop("skip")
        y = self.layer(x) if skip is None else self.layer(x) * torch.sigmoid(skip)
        return (y, *others) if others else y


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "tanh": nn.Tanh,
    "norm": lambda: nn.BatchNorm1d(WIDTH),
    "residual": Residual,
    "frozen": Frozen,
    "twice": Twice,
    "hooked": Hooked,
    "in place": InPlace,
}
VALUES = ("same", "other", "again", "detached", "numbers", "nothing", "text", "unused")


class Weighs(nn.Module):
    """A loss with a ``reduction`` of its own."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        losses = (output - target).square().mean(1)
        return losses.mean() if self.reduction == "mean" else losses.sum()


@dataclasses.dataclass(frozen=True)
class Program:
    """A pipeline, and the mini-batches that it trains on."""

    seed: int
    layers: tuple[str, ...]  # of PLAIN, or "open" … "close" around what passes several values
    values: tuple[str, ...]
    places: str  # of each layer, a worker's digit
    schedule: str
    checkpoint: str
    chunks: int
    rows: tuple[int, ...]  # of each mini-batch
    reduction: str
    skips: tuple[str, ...]  # what each connection carries: "stash0" and "pop0" are of the first
    way: str  # of the backward: "step", "loss", "context"
    input_gradients: bool

    def build(self) -> list[nn.Module]:
        """The layers, the same at each call."""
        torch.manual_seed(self.seed)
        special = {
            "open": lambda: Opens(list(self.values)),
            "pass": Passes,
            "close": lambda: Closes(list(self.values)),
        }
        for number, what in enumerate(self.skips):
            # The same in all builds: a copy of a namespace is that namespace.
            space = Namespace()
            space.id = uuid.UUID(int=1000 * self.seed + number)
            special[f"stash{number}"] = lambda what=what, space=space: Stashes(what).isolate(space)
            special[f"pop{number}"] = lambda space=space: Pops().isolate(space)
        return [{**PLAIN, **special}[name]() for name in self.layers]

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1000 * self.seed + number)
        return torch.randn(self.rows[number], WIDTH), torch.randn(self.rows[number], WIDTH)


def draw(seed: int) -> Program:
    chance = random.Random(seed)
    layers = chance.choices(list(PLAIN), k=chance.randint(1, 5))
    values: list[str] = []
    if chance.random() < 0.5:
        values = chance.choices(VALUES, k=chance.randint(1, 4))
        at = chance.randint(0, len(layers))
        layers[at:at] = ["open", *["pass"] * chance.randint(0, 2), "close"]
    skips = chance.choices(
        ["output", "output", "input", "detached", "none"], k=chance.choice([0, 0, 1, 2])
    )
    for number in range(len(skips)):
        begin = chance.randint(0, len(layers))
        layers.insert(begin, f"stash{number}")
        layers.insert(chance.randint(begin + 1, len(layers)), f"pop{number}")
    schedule = chance.choice(["gpipe", "1f1b", "zb", "interleaved"])
    chunks = chance.randint(1, 5)
    if schedule == "interleaved":
        layers += ["linear"] * (-len(layers) % 4)
        quarter = len(layers) // 4
        places = "".join(worker * quarter for worker in "1212")
        chunks = chance.choice([2, 4])
    else:
        places = "".join(chance.choice("012") for _ in layers)
        if chance.random() < 0.7:
            places = "".join(sorted(places))
    checkpoint = chance.choice(["never", "except_last", "always"])
    if schedule == "zb" or "norm" in layers:  # which a recomputation would update again
        checkpoint = "never"
    # Each micro-batch begins at 64 bytes, as memory does: the bits of a product depend on that.
    rows = tuple(
        8 * chance.randint(1, 2) * chunks - chance.randrange(chunks)
        for _ in range(chance.randint(1, 3))
    )
    return Program(
        seed,
        tuple(layers),
        tuple(values),
        places,
        schedule,
        checkpoint,
        chunks,
        rows,
        chance.choice(["mean", "sum"]),
        tuple(skips),
        chance.choice(["step", "loss", "context"]),
        chance.random() < 0.3,
    )
