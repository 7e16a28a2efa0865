"""How an ``nn.Sequential`` becomes partitions: one device each, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn


class WithDevice(nn.Module):
    """Tells :class:`weft.Pipe` on which device a module without parameters runs.

    Building the Pipe moves the module to that device::

        activation = weft.WithDevice(nn.ReLU(), "cpu")

    Args:
        module: any module.
        device: where it runs.
    """

    def __init__(self, module: nn.Module, device: torch.device | str | int) -> None:
        super().__init__()
        self._module = module
        self._device = torch.device(device)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._module(*args, **kwargs)

    @property
    def module(self) -> nn.Module:
        return self._module

    @property
    def device(self) -> torch.device:
        return self._device


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


class Split(NamedTuple):
    """What :func:`split` gives: per partition its layers and its device."""

    partitions: list[PipeSequential]
    devices: list[torch.device]
    #: Per partition and layer, the name it had in the plain Sequential.
    names: list[list[str]]


def split(module: nn.Sequential) -> Split:
    """Cuts a Sequential: neighbours on one accelerator share a partition, CPU children don't.

    A child Sequential is flattened one level.
    """
    groups: list[list[nn.Module]] = []
    devices: list[torch.device] = []
    names: list[list[str]] = []
    for name, child in module.named_children():
        if isinstance(child, WithDevice):
            device, child, name = _with_index(child.device), child.module, f"{name}._module"
            child.to(device)
        else:
            device = _device_of(name, child)
        if not groups or device != devices[-1] or device.type == "cpu":
            groups.append([])
            names.append([])
            devices.append(device)
        if isinstance(child, nn.Sequential):
            groups[-1].extend(child.children())
            names[-1].extend(f"{name}.{layer}" for layer, _ in child.named_children())
        else:
            groups[-1].append(child)
            names[-1].append(name)
    return Split([PipeSequential(*group) for group in groups], devices, names)


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


def _with_index(device: torch.device) -> torch.device:
    """The device with its index: ``cuda`` is the current CUDA device, as it is for tensors."""
    if device.index is None and device.type not in ("cpu", "meta"):
        return torch.device(device.type, torch.accelerator.current_device_index())
    return device


def _device_of(name: str, child: nn.Module) -> torch.device:
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
