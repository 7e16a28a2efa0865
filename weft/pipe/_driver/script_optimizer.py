"""The driver's half of the optimizer at a worker without Python: its options and its learning-rate
scheduler. The worker has the other half, what is kept of each parameter (pipe/scripted/script_optimizer.h).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.pipe._workers.state import parameters_of
from weft.pipe._workers.worker_optimizer import State, options_of_group

_KINDS = {torch.optim.SGD: "sgd", torch.optim.Adam: "adam", torch.optim.AdamW: "adam"}
_ELSEWHERE = ("foreach", "fused", "capturable", "differentiable")


class ScriptOptimizer:
    """An optimizer of torch's that holds the options, for a parameter that never has a gradient.

    Args:
        where: the stages and their worker, for errors.
        layers: those of the worker, by their names.
    """

    def __init__(self, where: str, layers: Mapping[str, nn.Module]) -> None:
        self._where = where
        parameters = parameters_of(layers)
        self._names = list(parameters)
        self._complex = [
            name for name, one in parameters.items() if one.is_complex() and one.requires_grad
        ]
        self._kind = ""
        self._own: torch.optim.Optimizer | None = None
        self._scheduler: Any = None

    def make(self, cls: Any, options: dict[str, Any]) -> None:
        """Takes other options.

        Raises:
            NotImplementedError: the worker has no such optimizer.
        """
        if self._complex:
            raise NotImplementedError(
                f"{self._where}, whose optimizer takes real numbers: '{self._complex[0]}' has others"
            )
        made = cls([torch.zeros(1)], **options) if cls in _KINDS else None
        group = {} if made is None else made.param_groups[0]
        odd = [name for name in _ELSEWHERE if group.get(name)]
        odd += [name for name, value in group.items() if name != "params" and _is_tensor(value)]
        if made is None or odd:
            name = getattr(cls, "__name__", cls)
            raise NotImplementedError(
                f"{self._where}, which has torch.optim's SGD, Adam and AdamW with numbers as options: "
                f"not {name}" + (f" with {', '.join(odd)}" if odd else "")
            )
        self._own, self._kind, self._scheduler = made, _KINDS[cls], None

    def make_scheduler(self, cls: Callable[..., Any], options: dict[str, Any]) -> None:
        if self._names and self._own is not None:
            self._scheduler = cls(self._own, **options)

    def call_scheduler(self, method: str, *args: Any) -> Any:
        return None if self._scheduler is None else getattr(self._scheduler, method)(*args)

    def next_step(self) -> tuple[str, dict[str, float]]:
        """The kind and the options of a step that is made now."""
        assert self._own is not None
        self._own.step()  # changes nothing; a scheduler wants to see it
        options: dict[str, float] = {}
        for name, value in self._options().items():
            if name == "betas":
                options["beta1"], options["beta2"] = map(float, value)
            elif value is not None:
                options[name] = float(value)
        return self._kind, options

    def _options(self) -> dict[str, Any]:
        assert self._own is not None
        group = self._own.param_groups[0]
        return {name: value for name, value in group.items() if name != "params"}

    def names(self) -> list[str]:
        """Of the parameters that it has."""
        return [] if self._own is None else self._names

    def state(self, kept: dict[str, dict[str, Tensor]]) -> State:
        """As :meth:`weft.pipe._workers.worker_optimizer.WorkerOptimizer.state`."""
        if self._own is None or not self._names:
            return {"parameters": {}, "scheduler": None}
        return {
            "parameters": {
                name: {"state": kept.get(name, {}), "options": self._options()}
                for name in self._names
            },
            "scheduler": None if self._scheduler is None else self._scheduler.state_dict(),
        }

    def load(self, state: State) -> dict[str, dict[str, Tensor]]:
        """Takes the options; gives what the worker is to keep.

        Raises:
            KeyError: a parameter is not in the state.
            RuntimeError: the parameters have different options there.
        """
        if self._own is None or not self._names:
            return {}
        options = options_of_group(self._names, state["parameters"])
        own = {name: state["parameters"][name] for name in self._names}
        self._own.param_groups[0].update(options)
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        return {name: _tensors(one["state"]) for name, one in own.items() if one["state"]}


def _is_tensor(value: Any) -> bool:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(one, Tensor) for one in values)


def _tensors(kept: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in kept.items() if isinstance(value, Tensor)}
