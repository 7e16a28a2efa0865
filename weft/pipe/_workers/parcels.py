"""Values between stages as a layout and tensors: C++ carries them without looking at the layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.distributed.rpc import internal

from weft.pipe._workers.values import leaves

Parcel = tuple[bytes, list[Tensor]]

_TENSOR, _LIST = b"", b"*"  # one tensor, a list of different ones; any other layout is a pickle
_HOST = ("cpu", "meta")


class Apart(NamedTuple):
    """A value whose tensors shared memory where they come from, and do not where they are."""

    value: Any


def pack(value: Any, input: bool = False) -> Parcel:
    """The value apart from its tensors. A tensor that occurs twice stays one.

    With ``input``, different tensors of one memory come as :class:`Apart`.

    Raises:
        TypeError: an ``input`` has tensors that want gradients where nobody finds them.
    """
    if type(value) is Tensor:
        return _TENSOR, [value]
    if type(value) is list and _are_different_tensors(value) and not (input and overlap(value)):
        return _LIST, value
    layout, tensors = internal.serialize(value)
    if input:
        _check_visible(value, tensors)
        if overlap(tensors):
            return internal.serialize(Apart(value))
    return layout, tensors


def check_visible(value: Any) -> None:
    """Raises TypeError if tensors that want gradients are where nobody finds them."""
    _check_visible(value, internal.serialize(value)[1])


def _check_visible(value: Any, tensors: list[Tensor]) -> None:
    seen = set(map(id, leaves(value)))
    if any(one.requires_grad and id(one) not in seen for one in tensors):
        kinds = {type(leaf).__name__ for leaf in leaves(value) if not isinstance(leaf, Tensor)}
        raise TypeError(
            f"a value between stages has tensors that want gradients inside of {', '.join(sorted(kinds))}: "
            "give them in tuples, lists or dictionaries, or register the class with "
            "torch.utils._pytree.register_pytree_node at all workers"
        )


def unpack(parcel: Parcel) -> Any:
    """What :func:`pack` got.

    Raises:
        AttributeError: a class of the value is not known here.
    """
    layout, tensors = parcel
    if layout == _TENSOR:
        return tensors[0]
    if layout == _LIST:
        return tensors
    value = internal.deserialize(layout, tensors)
    if isinstance(value, AttributeError):
        raise value
    return value


def portable(parcel: Parcel, worker: str) -> Parcel:
    """The parcel for another worker: on the CPU where no device map leads there."""
    layout, tensors = parcel
    if all(_is_host(tensor) for tensor in tensors) or _has_device_map(worker):
        return parcel
    return layout, [_to_host(tensor) for tensor in tensors]


def adopt(tensors: Iterable[Tensor]) -> None:
    """Keeps the memory of tensors of other streams until the current streams have used them."""
    for tensor in tensors:
        if not _is_host(tensor):
            tensor.record_stream(torch.accelerator.current_stream(tensor.device))


def settle(devices: Iterable[torch.device]) -> None:
    """Waits for the current streams of devices: what comes next may run on others."""
    for device in set(devices):
        if device.type not in _HOST:
            torch.accelerator.current_stream(device).synchronize()


def _are_different_tensors(values: list[Any]) -> bool:
    return all(type(one) is Tensor for one in values) and len(set(map(id, values))) == len(values)


def overlap(tensors: list[Tensor]) -> bool:
    """Whether two of them have one memory."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    places = [place for place in places if place]  # none on "meta"
    return len(set(places)) < len(places)


def _has_device_map(worker: str) -> bool:
    agent = rpc.api._get_current_rpc_agent()
    return bool(agent._get_device_map(agent.get_worker_info(worker)))


def _is_host(tensor: Tensor) -> bool:
    return tensor.device.type in _HOST


def _to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor
    return tensor.detach().cpu().requires_grad_(tensor.requires_grad)
