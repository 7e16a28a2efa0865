"""The optimizer of a worker's part of a pipeline, and its learning-rate scheduler."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import nn

#: Of layers or of an optimizer, by the names of parameters and buffers.
State = dict[str, Any]


class WorkerOptimizer:
    """Where there are no parameters it has none of torch's, and does nothing.

    One thread at a time, while no mini-batch runs. At a worker without Python there is
    pipe/scripted/script_optimizer.h.

    Args:
        parameters: by their names.
        cls: gives an optimizer of them; None: there is none yet.
        options: its other arguments.

    Raises:
        ValueError: the optimizer has a parameter that is not among these, or needs a closure.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        cls: Callable[..., torch.optim.Optimizer] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._optimizer: torch.optim.Optimizer | None = None
        #: The parameters of each of the optimizer's groups; some may be frozen or freed later.
        self._groups: list[list[str]] = []
        self._scheduler: Any = None
        if cls is not None and parameters:
            self._optimizer = cls(parameters.values(), **(options or {}))
            _refuse_closure(self._optimizer)
            self._groups = _names_in_groups(self._optimizer, parameters)

    def make_scheduler(self, cls: Callable[..., Any], options: dict[str, Any]) -> None:
        """Another one, which takes the place of the former."""
        self._scheduler = cls(self._optimizer, **options) if self._optimizer is not None else None

    def call(self, what: str, method: str, *args: Any) -> Any:
        """Calls a method of torch's ``optimizer`` or ``scheduler``, if there is one."""
        found = self._optimizer if what == "optimizer" else self._scheduler
        return None if found is None else getattr(found, method)(*args)

    def names(self) -> list[str]:
        """Of the parameters that it has."""
        return [name for names in self._groups for name in names]

    def state(self, own: Collection[str]) -> State:
        """What is kept of each ``own`` parameter, and its group's options; and the scheduler's state."""
        if self._optimizer is None:
            return {"parameters": {}, "scheduler": None}
        packed = self._optimizer.state_dict()
        parameters = {}
        for names, group in zip(self._groups, packed["param_groups"], strict=True):
            options = {key: value for key, value in group.items() if key != "params"}
            for name, number in zip(names, group["params"], strict=True):
                if name in own:
                    kept = packed["state"].get(number, {})
                    parameters[name] = {"state": kept, "options": options}
        scheduler = None if self._scheduler is None else self._scheduler.state_dict()
        return {"parameters": parameters, "scheduler": scheduler}

    def load(self, state: State) -> None:
        """Takes up its part of the states that :meth:`state` gave at all workers.

        Raises:
            KeyError: a parameter is not there.
            RuntimeError: the state is of other groups.
        """
        if self._optimizer is None:
            return
        packed = self._optimizer.state_dict()
        kept: State = {}
        groups = []
        for names, group in zip(self._groups, packed["param_groups"], strict=True):
            options = options_of_group(names, state["parameters"]) if names else group
            groups.append({**options, "params": group["params"]})
            for name, number in zip(names, group["params"], strict=True):
                if state["parameters"][name]["state"]:
                    kept[number] = state["parameters"][name]["state"]
        if self._scheduler is not None:
            _check_rates(state["scheduler"], len(groups))
        self._optimizer.load_state_dict({"state": kept, "param_groups": groups})
        if self._scheduler is not None and state["scheduler"] is not None:
            self._scheduler.load_state_dict(state["scheduler"])


def _refuse_closure(optimizer: torch.optim.Optimizer) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise ValueError(
            f"pipe.optimizer: {type(optimizer).__name__} needs a closure that computes the loss again, which "
            "a Pipe over workers cannot give it: take an optimizer that steps without one"
        )


def _names_in_groups(
    optimizer: torch.optim.Optimizer, found: Mapping[str, nn.Parameter]
) -> list[list[str]]:
    names = {parameter: name for name, parameter in found.items()}
    groups = [group["params"] for group in optimizer.param_groups]
    if any(one not in names for group in groups for one in group):
        raise ValueError(
            "pipe.optimizer: the function gives its optimizer a parameter that is not among those that "
            "it got"
        )
    return [[names[one] for one in group] for group in groups]


def options_of_group(names: Sequence[str], parameters: State) -> dict[str, Any]:
    """The options that all of these parameters have in an optimizer's state.

    Raises:
        KeyError: the state lacks one of them.
        RuntimeError: they were not in one group.
    """
    absent = [name for name in names if name not in parameters]
    if absent:
        raise KeyError(f"the optimizer's state lacks {', '.join(absent)}")
    options: dict[str, Any] = parameters[names[0]]["options"]
    others = [name for name in names if not _equal(parameters[name]["options"], options)]
    if others:
        raise RuntimeError(
            f"{names[0]} and {others[0]} are in one parameter group of the optimizer, and the state has "
            "other options for each: make the optimizer with the groups of the one that was saved"
        )
    return options


def _equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return left is right or (
        left.keys() == right.keys() and all(bool(left[key] == right[key]) for key in left)
    )


def _check_rates(scheduler: State | None, groups: int) -> None:
    rates = (scheduler or {}).get("_last_lr")
    if rates is not None and len(rates) != groups:
        raise RuntimeError(
            f"the scheduler's state is of {len(rates)} parameter groups, and the optimizer at worker "
            f"'{rpc.get_worker_info().name}' has {groups}: let the function that makes the groups give "
            "the same ones at each worker, also those that are empty there"
        )
