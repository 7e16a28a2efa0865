"""Scripted layers for pipelines over workers, and what says where their tasks ran."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def layers(seed: int = 0) -> list[torch.jit.ScriptModule]:
    """Four layers, the same in each process, of which TorchScript's first run gives the bits of later
    ones: with its own formulas for the gradients of Tanh and Softplus, which it uses later, it may not.
    """
    torch.manual_seed(seed)
    made = [
        nn.Linear(4, 6),
        nn.Sequential(nn.LeakyReLU(), nn.Linear(6, 6)),
        nn.Sequential(nn.ELU(), nn.Linear(6, 6)),
        nn.Sequential(nn.GELU(), nn.Linear(6, 3)),
    ]
    return [torch.jit.script(layer) for layer in made]


class SplitsTensors(nn.Module):
    """Gives different tensors: one with a gradient that is used, one that is not, one of numbers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, x.exp(), torch.arange(x.size(0))


class JoinsTensors(nn.Module):
    def forward(self, x: Tensor, unused: Tensor, rows: Tensor, by: float = 3.0) -> Tensor:
        return x * by + rows.unsqueeze(1)


class Lists(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        return [x, x.sin()]


class ListsRows(nn.Module):
    """Gives as many values as the micro-batch has rows."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(x.split(1))


class NamesRows(nn.Module):
    """Gives a value under a name for each row, and one under the number of rows."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        named = {str(row): x[row] for row in range(x.size(0))}
        named["rows"] = x
        return named


class NamesTheNumber(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {str(x.size(0)): x}


class OrdersByRows(nn.Module):
    """Gives two values under the same names, in an order of its rows' number."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if x.size(0) == 2:
            return {"low": x, "high": 2 * x}
        return {"high": 2 * x, "low": x}


class TakesList(nn.Module):
    def forward(self, values: list[Tensor]) -> Tensor:
        return values[0] * values[1]


class GivesSparse(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, torch.eye(x.size(1)).to_sparse()


class TakesSparse(nn.Module):
    def forward(self, x: Tensor, eye: Tensor) -> Tensor:
        return x @ eye.to_dense()


class Nests(nn.Module):
    """Gives what C++ alone does not read: names, one tensor twice, a number and a text."""

    def forward(self, x: Tensor) -> tuple[dict[str, Tensor], list[Tensor], int, str]:
        y = x + 1
        return {"y": y, "again": y}, [x.cos(), y], 2, "text"


class TakesNested(nn.Module):
    def forward(self, named: dict[str, Tensor], more: list[Tensor], by: float, text: str) -> Tensor:
        assert text == "text"
        return named["y"] * named["again"] * by + more[0] - more[1]


class ScalesByANumber(nn.Module):
    def forward(self, x: Tensor, by: int) -> Tensor:
        return x * by


class Drops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.layer(x), 0.5, self.training)


class AddsInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


class FailsAt(nn.Module):
    """Raises once, in the forward with this number."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise ValueError("the layer fails on purpose")
        return x * 1


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


class PythonNests(nn.Module):
    """Nests, in a layer that stays Python."""

    def forward(self, x: Tensor) -> tuple[dict[str, Tensor], list[Tensor], int, str]:
        y = x + 1
        return {"y": y, "again": y}, [x.cos(), y], 2, "text"


class PythonTakes(nn.Module):
    """Takes what Nests gives, in a layer that stays Python."""

    def forward(self, named: dict[str, Tensor], more: list[Tensor], by: int, text: str) -> Tensor:
        assert (by, text) == (2, "text")
        assert named["y"] is named["again"]
        return named["y"] * more[0] + more[1]


class InPlaceLoss(nn.Module):
    """Changes the output, and then uses it."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        output.sub_(target)
        return output.square().mean()


def seeded(seed: int) -> None:
    torch.manual_seed(seed)


def ran_in_cpp(_pipe: str) -> bool:
    """Whether the last task of this worker did."""
    from weft import _C
    from weft._observe import pipeline_tasks

    return isinstance(pipeline_tasks._kept[-1], _C.pipe.TaskRecord)


_hooks: list[torch.utils.hooks.RemovableHandle] = []


def hook_all_modules(on: bool) -> None:
    if on:
        _hooks.append(nn.modules.module.register_module_forward_hook(lambda *_: None))
    else:
        _hooks.pop().remove()


@torch.jit.interface
class Measure(nn.Module):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[empty-body]
        pass


class Squared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


class Absolute(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


class Measured(nn.Module):
    """A loss with a part that may be exchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.measure = Squared()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return self.measure.forward(output - target).sum()


Measured.__annotations__ = {"measure": Measure}  # not its name, as annotations here are
