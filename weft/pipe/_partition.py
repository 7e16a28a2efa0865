"""How an ``nn.Sequential`` becomes partitions: one device each, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from weft.pipe._whole import WholeSequential, whole_partition


class WithDevice(nn.Module):
    """Tells :class:`weft.Pipe` on which device a module runs and, with a schedule, on which worker.

    Building the Pipe moves the module there::

        activation = weft.WithDevice(nn.ReLU(), "cpu")
        decoder = weft.WithDevice(nn.Linear(2, 1), "stage1/cuda:0")
        slow = weft.WithDevice(nn.Linear(2, 2), ["a/cpu", "b/cpu"])

    Args:
        module: any module.
        device: where it runs: a device of this process, or ``"worker/device"``; or a list of these,
            for a replica at each worker.

    Raises:
        ValueError: the list is empty.
        RuntimeError: a device is none that torch knows.
    """

    def __init__(self, module: nn.Module, device: torch.device | str | int | Sequence[str]) -> None:
        super().__init__()
        self._module = module
        one = isinstance(device, (torch.device, str, int))
        #: The worker of each replica, None for this process, and its device there.
        self.replicas = [
            _worker_and_device(module, place) for place in ([device] if one else device)
        ]
        if not self.replicas:
            raise ValueError("a module needs at least one place")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._module(*args, **kwargs)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._module

    @property
    def device(self) -> torch.device:
        """The device, of the first replica."""
        return self.replicas[0][1]

    @property
    def worker(self) -> str | None:
        """The worker's name, of the first replica; None for this process."""
        return self.replicas[0][0]


def _worker_and_device(
    module: nn.Module, place: torch.device | str | int
) -> tuple[str | None, torch.device]:
    worker, device = None, place
    if isinstance(place, str) and "/" in place:
        worker, device = place.split("/", 1)
    try:
        return worker, torch.device(device)
    except RuntimeError as error:
        raise RuntimeError(
            f"the layer {type(module).__name__} cannot be on {place!r}: {error}"
        ) from None


class PipeSequential(nn.Sequential):
    """An ``nn.Sequential`` that passes several values: a tuple becomes the next layer's arguments."""

    def forward(self, *inputs: Any) -> Any:
        value: Any = inputs
        for module in self:
            value = module(*value) if isinstance(value, tuple) else module(value)
        return value


def check_sequential(module: nn.Module) -> None:
    """Raises unless ``module`` is a Sequential whose children are all different modules."""
    if not isinstance(module, nn.Sequential):
        raise TypeError(
            "module must be nn.Sequential to be partitioned, not " + type(module).__name__
        )
    if len(list(module.named_children())) != len(module):
        raise ValueError("module with duplicate children is not supported")
    if more := _more_than_a_chain(module):
        raise TypeError(
            f"{type(module).__name__} {more}, and a Pipe calls its layers one by one instead of it: "
            "make it a layer of another nn.Sequential"
        )


def _more_than_a_chain(module: nn.Sequential) -> str | None:
    """What calling a Sequential does besides calling its children one after the other."""
    forwards = (nn.Sequential.forward, PipeSequential.forward)
    if type(module).forward not in forwards or "forward" in vars(module):
        return "has a forward of its own"
    if module._parameters or module._buffers:
        return "has parameters or buffers of its own"
    return "has hooks" if has_hooks(module) else None


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module itself calls hooks of its own."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for kind in kinds)


class Split(NamedTuple):
    """What :func:`partitions_of` gives: per partition its layers and its device."""

    partitions: list[PipeSequential] | list[WholeSequential]
    devices: list[torch.device]
    #: Per partition and layer, the name it had in the plain Sequential.
    names: list[list[str]]


def partitions_of(module: nn.Sequential) -> Split:
    """Cuts a Sequential: neighbours on one accelerator share a partition, CPU children don't.

    A child Sequential is flattened one level, unless calling it does more than its layers do. The
    layers of a :class:`WholeSequential` keep their names in the partitions.
    """
    groups: list[list[nn.Module]] = []
    devices: list[torch.device] = []
    names: list[list[str]] = []
    for name, child in module.named_children():
        if isinstance(child, WithDevice):
            if child.worker is not None or len(child.replicas) > 1:
                raise ValueError(
                    f"child '{name}' goes to worker '{child.worker or 'this one, and others'}': give the "
                    'Pipe a schedule, such as schedule="1f1b"'
                )
            device, child, name = _with_index(child.device), child.module, f"{name}._module"
            child.to(device)
        else:
            device = device_of(name, child)
        if not groups or device != devices[-1] or device.type == "cpu":
            groups.append([])
            names.append([])
            devices.append(device)
        if isinstance(child, nn.Sequential) and not _more_than_a_chain(child):
            groups[-1].extend(child.children())
            names[-1].extend(f"{name}.{layer}" for layer, _ in child.named_children())
        else:
            groups[-1].append(child)
            names[-1].append(name)
    if not isinstance(module, WholeSequential):
        return Split([PipeSequential(*group) for group in groups], devices, names)
    own_names = [[name.rpartition(".")[2] for name in group] for group in names]
    layers = [dict(zip(*pair, strict=True)) for pair in zip(own_names, groups, strict=True)]
    whole = [whole_partition(one, one is layers[-1]) for one in layers]
    return Split(whole, devices, own_names)


def check_shared_parameters(
    partitions: Sequence[nn.Module], devices: Sequence[torch.device]
) -> None:
    """Raises if partitions on different devices share a parameter."""
    owners: dict[nn.Parameter, torch.device] = {}
    for index, (partition, device) in enumerate(zip(partitions, devices, strict=True)):
        for name, parameter in partition.named_parameters():
            if owners.setdefault(parameter, device) != device:
                raise ValueError(
                    f"'{name}' of partition {index} is shared with one on another device; "
                    "module with duplicate parameters on distinct devices is not supported"
                )


def shared_statistics(partitions: Sequence[nn.Module], devices: Sequence[torch.device]) -> str:
    """Why these must not run at once in training: two share a batch norm. Empty: they may.

    One that keeps running statistics, in partitions with a thread each.
    """
    owners: dict[Tensor, int] = {}
    for index, (partition, device) in enumerate(zip(partitions, devices, strict=True)):
        for name, layer in partition.named_modules():
            if device.type != "cpu" or not isinstance(layer, _BatchNorm):
                continue
            if layer.running_mean is None:
                continue
            if owners.setdefault(layer.running_mean, index) != index:
                return (
                    f"'{name}' of partition {index} is a batch norm of another partition, too, whose "
                    "thread would update the running statistics at the same time: give each a layer of "
                    "its own, or track_running_stats=False"
                )
    return ""


def _with_index(device: torch.device) -> torch.device:
    """The device with its index: ``cuda`` is the current CUDA device, as it is for tensors."""
    if device.index is None and device.type not in ("cpu", "meta"):
        return torch.device(device.type, torch.accelerator.current_device_index())
    return device


def device_of(name: str, child: nn.Module) -> torch.device:
    found = {tensor.device for tensor in child.parameters()}
    if not found:
        found = {tensor.device for tensor in child.buffers()}
    if len(found) > 1:
        raise ValueError(
            f"nn.Module: {child}, should have all parameters on a single device, please use .to() "
            f"to place the module on a single device (child '{name}' is on "
            f"{', '.join(sorted(map(str, found)))})"
        )
    return found.pop() if found else torch.device("cpu")
