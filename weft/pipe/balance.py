"""Cuts a Sequential into partitions of equal time or memory.

::

    from weft.pipe.balance import balance_by_time, place

    balance = balance_by_time(2, model, sample)        # for instance [3, 5]
    model = weft.Pipe(place(model, balance, ["cuda:0", "cuda:1"]), chunks=8)

The cut is optimal: no other has a cheaper most expensive partition. (torchgpipe and PyTorch 2.3
search for a good one.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.pipe import _profile
from weft.pipe._even_split import split_evenly
from weft.pipe._inputs import check_chunks, first_chunk
from weft.pipe._partition import WithDevice, check_shared_parameters
from weft.pipe._whole import WholeSequential, with_mark

__all__ = ["balance_by_size", "balance_by_time", "place"]

Device = torch.device | str | int


def balance_by_time(
    partitions: int,
    module: nn.Sequential,
    sample: Tensor | Sequence[Any],
    *,
    timeout: float = 1.0,
    device: Device | Sequence[Device] | None = None,
    unpack: bool = True,
) -> list[int]:
    """How many layers each partition gets, so that the slowest partition is as fast as possible.

    Times forward and backward of each layer in training mode. The module is not changed.

    ::

        layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1))
        placed = place(layers, balance_by_time(2, layers, batch), ["cpu", "cpu"])

    Args:
        partitions: the number of partitions.
        module: the layers.
        sample: an input of the size of a micro-batch: a tensor, or a sequence of arguments.
        timeout: seconds for all layers together; each layer runs at least a few times.
        device: where to run, by default the sample's device; a sequence gives each partition its
            own, and a layer is then timed on each of them.
        unpack: whether a tuple becomes the next layer's arguments, as in :class:`weft.Pipe`; False:
            it stays one argument, as in torchgpipe and :class:`weft.compat.GPipe`.

    Raises:
        ValueError: there are fewer layers than partitions.
        TypeError: ``module`` is no Sequential, or the sample holds no tensor.
        RuntimeError: a layer cannot run on the sample; the text names it.
    """
    devices = _check(partitions, module, sample, device)
    layers, args = _profiled(module, sample, unpack)
    return _balanced(devices, lambda one: _profile.seconds(layers, args, one, timeout))


def balance_by_size(
    partitions: int,
    module: nn.Sequential,
    input: Tensor | Sequence[Any],
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    device: Device | Sequence[Device] | None = None,
    unpack: bool = True,
) -> list[int]:
    """How many layers each partition gets, so that the largest partition is as small as possible.

    The memory of a layer is what it saves for backward of one micro-batch, in bytes, plus
    `param_scale` times its parameters.

    ::

        layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 1))
        balance = balance_by_size(2, layers, batch, chunks=4, param_scale=4)  # Adam

    Args:
        partitions: the number of partitions.
        module: the layers.
        input: a mini-batch: a tensor, or a sequence of arguments.
        chunks: the number of micro-batches that it is cut into.
        param_scale: by optimizer: SGD 2 (3 with momentum), Adam 4, AMSGrad 5, Adagrad 3, RMSprop
            3 to 5.
        device: as for :func:`balance_by_time`; "meta" computes nothing.
        unpack: as for :func:`balance_by_time`.

    Raises:
        ValueError, TypeError, RuntimeError: as :func:`balance_by_time`.
    """
    devices = _check(partitions, module, input, device)
    chunks = check_chunks(chunks)
    layers, values = _profiled(module, input, unpack)
    args = tuple(first_chunk(value, chunks) for value in values)
    return _balanced(devices, lambda one: _profile.saved_bytes(layers, args, one, param_scale))


def place(
    module: nn.Sequential, balance: Sequence[int], devices: Sequence[Device]
) -> nn.Sequential:
    """The layers of `module` as one child Sequential per partition, each moved to its device.

    Layers are moved, not copied. :class:`weft.WithDevice` wraps a part without parameters and
    buffers. Give the result to :class:`weft.Pipe`::

        placed = place(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), [1, 1], ["cpu", "cpu"])

    Args:
        module: the layers.
        balance: how many layers each partition has.
        devices: where each partition goes.

    Raises:
        ValueError: ``balance`` does not fit the layers or the devices, or two devices would share
            a parameter.
    """
    layers = list(module.named_children())
    if len(balance) != len(devices):
        raise ValueError(f"{len(balance)} partitions, but {len(devices)} devices")
    if min(balance, default=0) < 1 or sum(balance) != len(layers):
        raise ValueError(
            f"balance {list(balance)} does not cut {len(layers)} layers into partitions"
        )
    rest = iter(layers)
    parts = [nn.Sequential(OrderedDict(next(rest) for _ in range(count))) for count in balance]
    wanted = [torch.device(device) for device in devices]
    check_shared_parameters(parts, wanted)
    return nn.Sequential(*map(_on, parts, wanted))


def _on(part: nn.Module, device: torch.device) -> nn.Module:
    part = part.to(device)
    if device.type == "cpu" or any(True for _ in (*part.parameters(), *part.buffers())):
        return part
    return WithDevice(part, device)


def _arguments(sample: Tensor | Sequence[Any]) -> tuple[Any, ...]:
    return (sample,) if isinstance(sample, Tensor) else tuple(sample)


def _profiled(
    module: nn.Sequential, sample: Tensor | Sequence[Any], unpack: bool
) -> tuple[nn.Sequential, tuple[Any, ...]]:
    """The layers and their arguments, as the profile takes them."""
    if unpack:
        return module, _arguments(sample)
    whole = sample if isinstance(sample, Tensor) else tuple(sample)
    return WholeSequential(OrderedDict(module.named_children())), with_mark(whole)


def _check(
    partitions: int, module: nn.Sequential, sample: Tensor | Sequence[Any], device: Any
) -> list[torch.device]:
    """The device of each partition; or an error about the arguments."""
    if not isinstance(module, nn.Sequential):
        raise TypeError("module must be nn.Sequential to be partitioned")
    if not 1 <= partitions <= len(module):
        raise ValueError(f"can't cut {len(module)} layers into {partitions} partitions")
    if device is None:
        tensors = [value for value in _arguments(sample) if isinstance(value, Tensor)]
        if not tensors:
            raise TypeError("the sample must hold a tensor, to say which device is meant")
        device = tensors[0].device
    if isinstance(device, (torch.device, str, int)):
        return [torch.device(device)] * partitions
    devices = [torch.device(one) for one in device]
    if len(devices) != partitions:
        raise ValueError(f"{partitions} partitions, but {len(devices)} devices")
    return devices


def _balanced(devices: list[torch.device], profile: Any) -> list[int]:
    costs = {device: profile(device) for device in dict.fromkeys(devices)}
    return split_evenly([costs[device] for device in devices])
