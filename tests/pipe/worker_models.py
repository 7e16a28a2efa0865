"""Models for pipelines over workers, which pickle them, and the run that they must equal."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import rpc
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from waiting import takes

from weft.pipe.skip import pop, skippable, stash

ROWS = 10


def layers(seed: int = 0) -> list[nn.Module]:
    """Four layers, the same in each process."""
    torch.manual_seed(seed)
    return [
        nn.Linear(4, 6),
        nn.Sequential(nn.Tanh(), nn.Linear(6, 6)),
        nn.Sequential(nn.Softplus(), nn.Linear(6, 6)),
        nn.Sequential(nn.GELU(), nn.Linear(6, 3)),
    ]


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))


def one_after_the_other(
    model: nn.Module, inputs: Tensor, targets: Tensor, loss: Callable[..., Tensor], chunks: int
) -> Tensor:
    """The same micro-batches in one process; gradients add up in ``model``."""
    total = torch.zeros(())
    losses = []
    for part, wanted in zip(inputs.chunk(chunks), targets.chunk(chunks), strict=True):
        one = loss(model(part), wanted) * (part.size(0) / inputs.size(0))
        one.backward()
        losses.append(one.detach())
    for one in losses:
        total = total + one
    return total


def plain(seed: int = 0) -> nn.Sequential:
    return copy.deepcopy(nn.Sequential(*layers(seed)))


class Split(nn.Module):
    """Gives two tensors, a number and a text to the next stage."""

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor], int, str]:
        return x * 2, {"rows": torch.arange(x.size(0)), "half": x / 2}, 3, "text"


class Join(nn.Module):
    def forward(self, x: Tensor, more: dict[str, Tensor], times: int, text: str) -> Tensor:
        assert text == "text"
        return x * times + more["half"] + more["rows"].unsqueeze(1)


class Exits(nn.Module):
    """Ends as a program does, once."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ended:
            self.ended = True
            raise SystemExit(3)
        return x * 1


class HasNoText(BaseException):
    def __str__(self) -> str:
        raise ValueError("there is no text")

    __repr__ = __str__


class RaisesOnce(nn.Module):
    """What it raises has no text."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 1

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise HasNoText
        return x


class Failing(nn.Module):
    """Raises on purpose in the forward or the backward of a micro-batch, once, at one worker."""

    def __init__(self, at: int, backward: bool, worker: str | None = None) -> None:
        super().__init__()
        self.left = at
        self.backward_fails = backward
        self.worker = worker  # where; None: wherever it is

    def forward(self, x: Tensor) -> Tensor:
        if self.worker is None or self.worker == rpc.get_worker_info().name:
            self.left -= 1
        if self.left != 0:
            return x * 1
        if not self.backward_fails:
            raise ValueError("the layer fails on purpose")
        x = x * 1
        x.register_hook(self._fail)
        return x

    def _fail(self, gradient: Tensor) -> Tensor:
        raise ValueError("the backward fails on purpose")


class FailsLate(nn.Module):
    """Its first backward raises on the way to the second input, when it has come to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        b = b * 2
        b.register_hook(self._fail_once)
        return a * 2 + b

    def _fail_once(self, gradient: Tensor) -> None:
        if not self.failed:
            self.failed = True
            raise ValueError("the backward fails on purpose")


class FailsInACheckpoint(nn.Module):
    """Has a checkpoint of its own."""

    def forward(self, x):
        return checkpoint(self.fail, x, use_reentrant=False)

    def fail(self, x):
        raise ValueError(f"no {len(x)}")


class AddsInPlace(nn.Module):
    """Changes its input, once per call."""

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


class WaitsOnce(nn.Module):
    """Its first backward in a process waits there until it is let go."""

    came = threading.Event()
    goes = threading.Event()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y.register_hook(self._wait)
        return y

    def _wait(self, _gradient: Tensor) -> None:
        self.came.set()
        assert self.goes.wait(60)


class Centres(nn.Module):
    """Changes its input, of which its layer keeps what it was made to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sub_(0.5))


class OneOrTwo(nn.Module):
    """Uses its layer twice for some inputs, whose backward cannot be split then."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return self.layer(torch.tanh(y)) if bool(x.sum() > 0) else y


class HasExtraState(nn.Linear):
    def get_extra_state(self) -> Hidden:
        return Hidden(torch.ones(1))

    def set_extra_state(self, state: Hidden) -> None:
        assert isinstance(state, Hidden)


class Doubles(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {})) * 2


class Widen(nn.Module):
    """Gives many columns, with a gradient."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1] * self.row


class Narrow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3]


class Twice(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y, y


class ChangesFirst(nn.Module):
    """The second sees what is done to the first: they are one."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a + b


class Adds(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


class SlowToMove(nn.Linear):
    """Takes longer to be moved to its worker's device than a call may."""

    def _apply(self, *args, **kwargs):
        takes(1.5)
        return super()._apply(*args, **kwargs)


class TakesLong(nn.Module):
    """Takes so long that a worker which waits for its output asks whether the driver is there."""

    def forward(self, x: Tensor) -> Tensor:
        takes(1.5)
        return x


class CannotMove(nn.Linear):
    def _apply(self, *args, **kwargs):
        raise RuntimeError("it cannot be moved, on purpose")


class Overlapping(nn.Module):
    """Gives a tensor without a gradient, and a part of it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.detach() + 1
        return y, y[:, :3]


class ChangesOne(nn.Module):
    """Changes its first input in place where that is wanted; the second may be a part of it."""

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.changes = changes
        self.layer = nn.Linear(3, 3)

    def forward(self, whole: Tensor, part: Tensor) -> Tensor:
        if self.changes:
            whole.mul_(2)
        return self.layer(part) + whole[:, :3]


class Scales(nn.Module):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return x * by


class Several(nn.Module):
    """Gives one tensor twice, another that is used, one that is not, numbers and a text."""

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor], str]:
        more = {"same": x, "again": x, "rows": torch.arange(x.size(0)), "unused": x.exp()}
        return x * 2, more, "text"


@dataclasses.dataclass
class Hidden:
    """Whose tensor a Pipe does not find."""

    tensor: Tensor


class Hides(nn.Module):
    def forward(self, x: Tensor) -> Hidden:
        return Hidden(x * 2)


def copied(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module)


@skippable(stash=["data"])
class StashesData(nn.Module):
    def forward(self, x: Tensor):
        y = x + 1
        yield stash("data", y)
        return y


@skippable(pop=["data"])
class PopsAndAdds(nn.Module):
    def forward(self, x: Tensor):
        data = yield pop("data")
        return x + data


class OwnNoise(nn.Module):
    """Draws from a generator of its own, the same wherever it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.empty_like(x).normal_(generator=self.generator)


class Notes(nn.Module):
    """Remembers how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        from weft.pipe import is_checkpointing, is_recomputing

        modes = {"checkpointing": is_checkpointing(), "recomputing": is_recomputing()}
        self.calls.append(next((name for name, on in modes.items() if on), "plain"))
        return self.layer(x)


def notes(pipe: str) -> list[str]:
    from weft.pipe._workers.part import part_of

    layers = part_of(pipe).layers.values()
    return [call for layer in layers if isinstance(layer, Notes) for call in layer.calls]


def loss_in_a_row(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, target).reshape(1)


class Weighted(nn.Module):
    """A loss with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output * self.weight, target)


def weighted(output: Tensor, target: Tensor, head: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(head(output), target)


class Masked(nn.Module):
    """Takes what is the same for all micro-batches first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, mask: Tensor, x: Tensor) -> Tensor:
        return self.layer(x) * mask.sum()


class Multiplies(nn.Module):
    """By a sparse matrix, which it gives on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, sparse: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(torch.sparse.mm(sparse, x)), sparse


class FirstOf(nn.Module):
    def forward(self, x: Tensor, _other: Tensor) -> Tensor:
        return x


class HooksItsInput(nn.Module):
    """Doubles the gradient of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 2)
        return self.layer(x)


class Slope(nn.Module):
    """Gives the gradient of what its layer makes of the input, of which it asks for one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x.requires_grad_()
        (found,) = torch.autograd.grad(torch.tanh(self.layer(x)).sum(), x, create_graph=True)
        return found


class SlopeOfDropout(nn.Module):
    """Likewise, of what it drops; three of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        kept = nn.functional.dropout(torch.tanh(self.layer(x)), 0.5)
        (found,) = torch.autograd.grad(kept.pow(2).sum(), x, create_graph=True)
        return found[:, :3]


class DrawsBesideAThread(nn.Module):
    """Drops something; in its first run a thread draws meanwhile."""

    def forward(self, x: Tensor) -> Tensor:
        from weft.pipe import is_recomputing

        x = nn.functional.dropout(x.tanh(), 0.5)
        if not is_recomputing():
            beside = threading.Thread(target=torch.rand, args=(1,))
            beside.start()
            beside.join()
        return x


class CountsItsRuns(nn.Module):
    """Scales by how often it has run."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x.tanh() * self.runs


def normed() -> nn.Module:
    """Writes a buffer in each run, with which it computes."""
    return nn.utils.spectral_norm(nn.Linear(4, 4))


class Migrates(nn.Module):
    """Whose former versions kept a tenth of the weight."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight

    def _load_from_state_dict(self, state, prefix, local_metadata, *args):
        if local_metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"] * 10
        super()._load_from_state_dict(state, prefix, local_metadata, *args)


class Named(NamedTuple):
    left: Tensor
    right: str


class Names(nn.Module):
    def forward(self, x: Tensor) -> Named:
        return Named(x, "right")


class GivesItsBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.seen.copy_(x)


class GivesTwoBuffers(nn.Module):
    """In turns: the first is changed when the third micro-batch comes."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers_in_turn = [torch.zeros(3, 4), torch.zeros(3, 4)]
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.buffers_in_turn[self.calls % 2].copy_(x.detach())


@skippable(stash=["doubled"])
class StashesDoubled(nn.Module):
    def forward(self, x: Tensor):
        yield stash("doubled", x.detach() * 2)
        return x + 1


@skippable(pop=["doubled"])
class DoublesInPlace(nn.Module):
    def forward(self, x: Tensor):
        doubled = yield pop("doubled")
        return x + doubled.mul_(2)
