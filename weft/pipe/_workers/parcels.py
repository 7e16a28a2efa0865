"""Values between stages as a layout and tensors: C++ carries them without looking at the layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.distributed.rpc import internal

from weft import _C
from weft._torch.forks import forks
from weft.pipe._workers.values import cut, leaves, mapped, tensors_in

Parcel = tuple[bytes, list[Tensor]]

#: One tensor; a tuple or a list of different ones, after which a byte tells for each of a list
#: whether it is there, unless all are. Other layouts are pickles. _LOST_SHARING may be before each.
#: Scripted stages read and write these in C++, pipe/scripted/script_values.h.
_TENSOR, _TUPLE, _LIST, _LOST_SHARING = b"", b"(", b"*", b"&"
_HOST = ("cpu", "meta")


class LostSharing(NamedTuple):
    """A value whose tensors shared memory at the sender, and are separate copies here.

    A write to one of them would be seen in that one only.
    """

    value: Any


def pack(value: Any, forward: bool = False) -> Parcel:
    """The value apart from its tensors. A tensor that occurs twice stays one.

    With ``forward``, different tensors of one memory come as :class:`LostSharing`.

    Raises:
        TypeError: a value that goes ``forward`` has tensors that want gradients where nobody finds them.
    """
    if type(value) is Tensor:
        return _TENSOR, [value]
    if isinstance(value, LostSharing):
        layout, tensors = pack(value.value, forward)
        return _LOST_SHARING + layout.removeprefix(_LOST_SHARING), tensors
    layout = _layout_of(value) if type(value) in (list, tuple) else None
    if layout is not None:
        tensors = [one for one in value if one is not None]
    else:
        layout, tensors = internal._internal_rpc_pickler.serialize(value)
        if forward and not _are_visible(value, tensors):
            forks.forget_last_message()
            raise _hidden(value)
    return (_LOST_SHARING if forward and _C.pipe.share_storage(tensors) else b"") + layout, tensors


def check_visible(value: Any) -> None:
    """Raises TypeError if tensors that want gradients are where nobody finds them."""
    tensors = internal._internal_rpc_pickler.serialize(value)[1]
    forks.forget_last_message()
    if not _are_visible(value, tensors):
        raise _hidden(value)


def _are_visible(value: Any, tensors: list[Tensor]) -> bool:
    """Whether all tensors of a value's pickle that want gradients are its leaves."""
    seen = set(map(id, leaves(value)))
    return all(id(one) in seen for one in tensors if one.requires_grad)


def _hidden(value: Any) -> TypeError:
    kinds = {type(leaf).__name__ for leaf in leaves(value) if not isinstance(leaf, Tensor)}
    return TypeError(
        f"a value between stages has tensors that require gradients inside "
        f"{', '.join(sorted(kinds))}: give them in tuples, lists or dictionaries, or register "
        "the class with torch.utils._pytree.register_pytree_node at all workers"
    )


def unpack(parcel: Parcel) -> Any:
    """What :func:`pack` got.

    Raises:
        AttributeError: a class of the value is not known here.
    """
    layout, tensors = parcel
    if layout[:1] == _LOST_SHARING:
        return LostSharing(unpack((layout[1:], tensors)))
    if layout == _TENSOR:
        return tensors[0]
    if layout == _TUPLE:
        return tuple(tensors)
    if layout[:1] == _LIST:
        left = iter(tensors)
        return [next(left) if there else None for there in layout[1:]] or tensors
    value = internal.deserialize(layout, tensors)
    if isinstance(value, AttributeError):
        raise value from None  # its cause says less
    if all(tensor.is_leaf for tensor in tensors_in(value)):
        return value
    return mapped(_as_leaf, value)


def _as_leaf(tensor: Tensor) -> Tensor:
    """A tensor of a subclass is made of a leaf, and so is none."""
    return tensor if tensor.is_leaf else cut(tensor)


def for_worker(parcel: Parcel, worker: str) -> Parcel:
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
    """Waits for the current streams of devices, because the next work may run on others."""
    for device in set(devices):
        if device.type not in _HOST:
            torch.accelerator.current_stream(device).synchronize()


def _layout_of(values: list[Any] | tuple[Any, ...]) -> bytes | None:
    """The layout of different tensors; a list may have None among them. Other values have none."""
    tensors = [one for one in values if one is not None]
    different = len(set(map(id, tensors))) == len(tensors)
    if not different or any(type(one) is not Tensor for one in tensors):
        return None
    if len(tensors) == len(values):
        return _LIST if type(values) is list else _TUPLE
    return _LIST + bytes(one is not None for one in values) if type(values) is list else None


def _has_device_map(worker: str) -> bool:
    agent = rpc.api._get_current_rpc_agent()
    return bool(agent._get_device_map(agent.get_worker_info(worker)))


def _is_host(tensor: Tensor) -> bool:
    return tensor.device.type in _HOST


def _to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor
    return tensor.detach().cpu().requires_grad_(tensor.requires_grad)
