"""How an ``nn.Sequential`` becomes stages on workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from weft import _C
from weft._remote import at_owner
from weft.pipe._partition import WithDevice, check_sequential, device_of
from weft.pipe._workers.job import SkipRoute, StagePlace
from weft.pipe._workers.part import Layer
from weft.pipe.skip._layout import Declared, verify_declared
from weft.pipe.skip._store import SkipKey
from weft.remote_module import RemoteModule


class StageLayers(NamedTuple):
    """A stage before it is built."""

    place: StagePlace
    layers: list[Layer]

    def make_again(self) -> None:
        """Makes its remote modules again, at a worker that was restarted.

        One that another Pipe has made again stays: both train and use the same.
        """
        for layer in self.layers:
            if isinstance(layer.module, RemoteModule) and not _is_there(layer.module):
                layer.module.make_again()


def _is_there(remote: RemoteModule) -> bool:
    """Whether its owner has the module; raises where the owner is lost."""
    there = remote.get_module_rref()
    try:
        rpc.rpc_sync(there.owner(), at_owner.is_training, args=(there,), timeout=0)
    except Exception:  # the module went with a former process, or could not be made
        rpc.rpc_sync(there.owner(), rpc.get_worker_info, timeout=0)
        return False
    return True


def divide(module: nn.Sequential) -> list[StageLayers]:
    """Cuts a Sequential: neighbours on one device of one worker share a stage.

    A :class:`weft.RemoteModule` is where it is; :class:`weft.WithDevice` says where a module goes; any
    other child stays in this process, on its device.

    Raises:
        TypeError: ``module`` is no Sequential.
        ValueError: it is empty, a worker has two replicas of a stage, two workers would share a
            parameter, a module that goes to another worker has hooks on its parameters or tensors that
            share memory, one with replicas has lazy parameters, or a RemoteModule is in a WithDevice.
    """
    check_sequential(module)
    if len(module) == 0:
        raise ValueError("a Pipe with a schedule needs at least one stage")
    stages: list[StageLayers] = []
    for name, child in module.named_children():
        place, layer = _place(name, child)
        if not stages or stages[-1].place != place:
            stages.append(StageLayers(place, []))
        stages[-1].layers.append(layer)
    _check_shared_parameters(stages)
    return _with_shared_buffers(stages)


def skip_routes(declared: Sequence[tuple[int, Declared]]) -> list[tuple[SkipRoute, SkipKey]]:
    """The skip connections between stages, of what their layers stash and pop, in order.

    Raises:
        TypeError: a skip is not stashed once and popped once, in this order.
    """
    verify_declared(layer for _, layer in declared)
    begins = {key: stage for stage, layer in declared for key in layer.stashes}
    return [
        (SkipRoute(begins[key], stage), key)
        for stage, layer in declared
        for key in layer.pops
        if begins[key] != stage
    ]


def _place(name: str, child: nn.Module) -> tuple[StagePlace, Layer]:
    here = rpc.get_worker_info().name
    if isinstance(child, RemoteModule):
        worker = child.get_module_rref().owner_name()
        return StagePlace((worker,), (child.device,)), Layer(name, child)
    if isinstance(child, WithDevice):
        workers = tuple(worker or here for worker, _ in child.replicas)
        if len(set(workers)) < len(workers):
            raise ValueError(
                f"child '{name}' has two replicas on one worker, of {', '.join(workers)}: a worker "
                "runs one task at a time"
            )
        if isinstance(child.module, RemoteModule):
            raise ValueError(
                f"child '{name}' is a RemoteModule, which is where it is: give it without WithDevice"
            )
        if any(worker != here for worker in workers):
            _refuse_hooks(name, child.module)
        if len(workers) > 1:
            _refuse_lazy_parameters(name, child.module)
        devices = tuple(str(device) for _, device in child.replicas)
        return StagePlace(workers, devices), Layer(name, child.module)
    return StagePlace((here,), (str(device_of(name, child)),)), Layer(name, child)


def inner_remote_module(module: nn.Sequential) -> str:
    """The name of a remote module inside a child of the Sequential; empty: there is none."""
    for name, child in module.named_children():
        layer = child.module if isinstance(child, WithDevice) else child
        for inside, one in layer.named_modules():
            if inside and hasattr(one, "get_module_rref"):
                return f"{name}.{inside}"
    return ""


def _sharing_buffers(layer: Layer) -> set[str]:
    """The buffers that share memory here, and arrive with memory of their own: they are watched.

    Raises:
        ValueError: a parameter shares some.
    """
    names = {one: key for key, one in layer.module.named_parameters()}
    names |= {one: key for key, one in layer.module.named_buffers()}
    tensors = list(names)
    found: set[str] = set()
    for pair in _C.pipe.overlapping(tensors):
        one, other = (tensors[at] for at in pair)
        key, other_key = names[one], names[other]
        if isinstance(one, nn.Parameter) or isinstance(other, nn.Parameter):
            raise ValueError(
                f"'{layer.name}.{key}' and '{layer.name}.{other_key}' have memory in common, and would "
                "not at the worker that they go to: let the module make one of the other in its "
                "forward, or make it there with weft.RemoteModule"
            )
        found |= {key, other_key}
    return found


def _refuse_lazy_parameters(name: str, module: nn.Module) -> None:
    for key, one in module.named_parameters():
        if is_lazy(one):
            raise ValueError(
                f"'{name}.{key}' gets its values with the first input, and each replica would make its "
                "own: run the module once before"
            )


def _refuse_hooks(name: str, module: nn.Module) -> None:
    """Pickling a tensor leaves its hooks behind."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    hooked = [
        f"{name}.{key}"
        for key, one in tensors
        if one._backward_hooks or getattr(one, "_post_accumulate_grad_hooks", None)
    ]
    if hooked:
        raise ValueError(
            f"hooks of tensors do not go with child '{name}' to another worker, and these have some: "
            f"{', '.join(hooked)}. Let the module register them in its forward, once, or make it "
            "there with weft.RemoteModule"
        )


def _with_shared_buffers(stages: list[StageLayers]) -> list[StageLayers]:
    """The stages with what their layers share. Constants may be shared; the workers see what is one."""
    places: dict[Tensor, set[StagePlace]] = {}
    for place, layers in stages:
        for layer in layers:
            for buffer in layer.module.buffers():
                places.setdefault(buffer, set()).add(place)

    here = rpc.get_worker_info().name

    def noted(place: StagePlace, layer: Layer) -> Layer:
        buffers = dict(layer.module.named_buffers(remove_duplicate=False))
        shared = {name for name, one in buffers.items() if len(places[one]) > 1}
        if place.workers != (here,):  # there they have memory of their own
            shared |= _sharing_buffers(layer)
        return layer._replace(shared=tuple(name for name in buffers if name in shared))

    return [
        StageLayers(place, [noted(place, layer) for layer in layers]) for place, layers in stages
    ]


def _check_shared_parameters(stages: list[StageLayers]) -> None:
    owners: dict[nn.Parameter, tuple[str, ...]] = {}
    for place, layers in stages:
        for layer in layers:
            for name, parameter in layer.module.named_parameters():
                if owners.setdefault(parameter, place.workers) != place.workers:
                    raise ValueError(
                        f"'{layer.name}.{name}' is shared with a stage on another worker; each would "
                        "train a copy of its own"
                    )
