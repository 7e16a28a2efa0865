"""The state of a worker's part: of its layers by the names of the plain Sequential, of its optimizer
by the names of the parameters. So a state can be loaded into another division into stages.

The driver calls the functions over RPC.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

from weft.pipe._workers.part import Part, part_of
from weft.pipe._workers.worker_optimizer import State, WorkerOptimizer


def _settled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function wait for its writes, because the next one may run on another stream."""

    @functools.wraps(function)
    def settled(pipe: str, *args: Any) -> Any:
        result = function(pipe, *args)
        part_of(pipe).settle()
        return result

    return settled


def _own_layers(part: Part) -> dict[str, nn.Module]:
    """The layers whose state this worker gives."""
    return {name: module for name, module in part.layers.items() if name not in part.copies}


def parameters_of(layers: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters, each once, by its first name, as ``named_parameters`` of the plain Sequential."""
    found: dict[nn.Parameter, str] = {}
    for layer, module in layers.items():
        for name, parameter in module.named_parameters():
            found.setdefault(parameter, f"{layer}.{name}")
    return {name: parameter for parameter, name in found.items()}


def parameter_rrefs(pipe: str) -> list[rpc.RRef]:
    return [rpc.RRef(one) for one in parameters_of(part_of(pipe).layers).values()]


def layers_state(pipe: str) -> State:
    own = _own_layers(part_of(pipe))
    states = {layer: module.state_dict() for layer, module in own.items()}
    whole = {
        f"{layer}.{key}": value.cpu() if isinstance(value, Tensor) else value
        for layer, state in states.items()
        for key, value in state.items()
    }
    return with_metadata(whole, metadata_of(states))


def with_metadata(state: Mapping[str, Any], metadata: Mapping[str, Any]) -> State:
    """The state as ``nn.Module.state_dict`` gives it: ``_metadata`` has each module's version, of which
    ``load_state_dict`` tells the module.
    """
    made = OrderedDict(state)
    made._metadata = OrderedDict(metadata)  # type: ignore[attr-defined]
    return made


def metadata_of(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of the layers' states, as that of the plain Sequential has it."""
    return {
        f"{layer}.{name}".removesuffix("."): one
        for layer, state in states.items()
        for name, one in getattr(state, "_metadata", {}).items()
    }


def metadata_below(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What there is of a module of this name, and of those in it by their names in it."""
    found = getattr(state, "_metadata", None) or {}
    beginning = f"{name}."
    return {
        key[len(beginning) :]: one
        for key, one in found.items()
        if key == name or key.startswith(beginning)
    }


@_settled
def load_layers(pipe: str, state: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The keys that were missing, and those that were used."""
    missing: list[str] = []
    used: list[str] = []
    for layer, module in part_of(pipe).layers.items():
        beginning = f"{layer}."
        own = {key[len(beginning) :]: state[key] for key in state if key.startswith(beginning)}
        versioned = with_metadata(own, metadata_below(state, layer))
        try:
            found = module.load_state_dict(versioned, strict=False)
        except RuntimeError as error:
            raise RuntimeError(f"layer '{layer}' of the Pipe: {error}") from None
        missing += [beginning + key for key in found.missing_keys]
        used += [beginning + key for key in own if key not in found.unexpected_keys]
    return missing, used


@_settled
def change(pipe: str, method: str, *args: Any) -> None:
    """``train``, ``zero_grad`` or another method, of each layer."""
    for module in part_of(pipe).layers.values():
        getattr(module, method)(*args)


def _gradients(layers: Mapping[str, nn.Module]) -> list[Tensor]:
    return [one.grad for one in parameters_of(layers).values() if one.grad is not None]


def gradient_norms(pipe: str, norm_type: float) -> list[tuple[str, Tensor]]:
    """The norms of the parameters' gradients, each with the name of the layer."""
    return [
        (name.partition(".")[0], torch.linalg.vector_norm(one.grad, norm_type).cpu())
        for name, one in parameters_of(_own_layers(part_of(pipe))).items()
        if one.grad is not None
    ]


@_settled
def scale_gradients(pipe: str, factor: float) -> None:
    for one in _gradients(part_of(pipe).layers):
        one.mul_(factor)


def make_optimizer(
    pipe: str, cls: Callable[..., torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    part = part_of(pipe)
    # Also frozen ones, which may be freed later.
    part.optimizer = WorkerOptimizer(parameters_of(part.layers), cls, options)


def make_scheduler(pipe: str, cls: Callable[..., Any], options: dict[str, Any]) -> None:
    part_of(pipe).optimizer.make_scheduler(cls, options)


@_settled
def call_optimizer(pipe: str, what: str, method: str, *args: Any) -> Any:
    """Calls a method of the ``optimizer`` or the ``scheduler``; None where there is nothing to train."""
    return part_of(pipe).optimizer.call(what, method, *args)


def optimizer_state(pipe: str) -> State:
    """As :meth:`WorkerOptimizer.state`, of the layers whose state this worker gives."""
    part = part_of(pipe)
    return part.optimizer.state(parameters_of(_own_layers(part)).keys())


def optimized(pipe: str) -> list[str]:
    """The names of the parameters that the optimizer has."""
    return part_of(pipe).optimizer.names()


@_settled
def load_optimizer(pipe: str, state: State) -> None:
    part_of(pipe).optimizer.load(state)
