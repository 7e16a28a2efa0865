"""Runs at the owner of a remote module. Peers call each of these functions over RPC."""

from __future__ import annotations

import collections
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.distributed.rpc import PyRRef as RRef
from torch.utils import _pytree as pytree

from weft._remote.annotations import restoring, result_of
from weft._remote.named_tuples import picklable
from weft._remote.signature import Signature, signature_of
from weft.publishing import publish, published, unpublish

_CHANGES = ("train", "zero_grad", "requires_grad_")
_naming = threading.Lock()
# The class that a scripted module was made of; it has the annotations.
_unscripted: weakref.WeakKeyDictionary[nn.Module, type[nn.Module]] = weakref.WeakKeyDictionary()


def create(
    module_cls: Callable[..., nn.Module],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: str,
    scripted: bool,
    name: str | None,
    replace: bool,
) -> nn.Module:
    """Makes the module, and publishes it if it has a name: a new one, unless ``replace``."""
    if name is not None and not replace:
        _check_new(name)
    module = module_cls(*args, **kwargs)
    if not isinstance(module, nn.Module):
        raise ValueError(
            "Expect `module_cls(*args, **kwargs)` returns an instance of <class nn.Module>, "
            f"but it returns an instance of {type(module)}."
        )
    module.to(device)
    if scripted:
        module = _scripted(module)
    if name is not None:
        with _naming:  # if two are made at once, one gets the name
            if not replace:
                _check_new(name)
            newest = publish(name, _served(module, device))
            for one in published():  # else they would be kept for as long as the process lives
                if one.name == name and one.version < newest:
                    unpublish(name, one.version)
    return module


def _check_new(name: str) -> None:
    # Scripted and saved models call the newest version of a name, so a second module under that name would
    # answer calls that are meant for the first.
    if any(one.name == name for one in published()):
        raise ValueError(
            f"a remote module cannot be published as '{name}': its owner publishes something by that name "
            "already; give another name, weft.unpublish the name there, or pass replace=True to let "
            "scripted and saved models call the new module from now on"
        )


class _Placed(nn.Module):
    """A module on an accelerator for callers with CPU tensors: scripted models, other processes."""

    def __init__(self, module: nn.Module, device: str) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self.named = restoring(module, module.forward)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = place((args, kwargs), self.device)
        return place(self.named(*args, **kwargs), "cpu")


def _served(module: nn.Module, device: str) -> nn.Module:
    return module if torch.device(device).type == "cpu" else _Placed(module, device)


def _scripted(module: nn.Module) -> nn.Module:
    try:
        scripted = torch.jit.script(module)
        _unscripted[scripted] = type(module)
        return scripted
    except torch.jit.frontend.FrontendError as error:  # the caller cannot unpickle it
        raise RuntimeError(f"{type(module).__name__} cannot be scripted: {error}") from None


def place(values: Any, device: torch.device | str) -> Any:
    """``values`` with its tensors on ``device``, also those inside lists, tuples and dicts."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), values)


def run(
    module_rref: RRef,
    device: str,
    keep_device: bool,
    method: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Runs a method with tensors on the module's device; ``forward`` runs with the module's hooks.

    Without a device map only CPU tensors can go back (``keep_device`` is False).
    """
    module = module_rref.local_value()
    function = module if method == "forward" else getattr(module, method)
    here = torch.device(device).type == "cpu"
    if not here:
        args, kwargs = place((args, kwargs), device)
    result = function(*args, **kwargs)
    if isinstance(module, torch.jit.ScriptModule):
        result = _named(module, method, result)
    return result if here or keep_device else place(result, "cpu")


def _named(module: torch.jit.ScriptModule, method: str, result: Any) -> Any:
    """A scripted module's result with NamedTuples that the caller can read."""
    annotated = getattr(_unscripted.get(module), method, None)
    return picklable(result if annotated is None else result_of(annotated)(result))


def parameters(module_rref: RRef, recurse: bool) -> list[RRef]:
    return [rpc.RRef(parameter) for parameter in module_rref.local_value().parameters(recurse)]


def gradients(module_rref: RRef, context_id: int | None) -> dict[str, Tensor | None]:
    """The gradients by parameter name: of a distributed autograd context, or in ``.grad``."""
    of_context: Mapping[Tensor, Tensor] = {}
    if context_id is not None:
        of_context = torch.distributed.autograd.get_gradients(context_id)
    found = {}
    for name, parameter in module_rref.local_value().named_parameters():
        grad = parameter.grad if context_id is None else of_context.get(parameter)
        found[name] = None if grad is None else grad.cpu()
    return found


def state(module_rref: RRef) -> dict[str, Any]:
    """The state_dict, with its metadata, on the CPU."""
    full = module_rref.local_value().state_dict()
    metadata = getattr(full, "_metadata", None)
    moved = type(full)((key, place(value, "cpu")) for key, value in full.items())
    if metadata is not None:
        moved._metadata = metadata
    return moved


def load_state(
    module_rref: RRef, values: Mapping[str, Any], metadata: dict[str, dict[str, Any]]
) -> tuple[list[str], list[str], str]:
    """Loads the keys that fit; returns missing keys, unexpected keys and any other error.

    Args:
        metadata: by submodule, as in a state_dict's ``_metadata``: modules convert states of old versions.
    """
    state_dict = collections.OrderedDict(values)
    state_dict._metadata = metadata  # type: ignore[attr-defined]
    try:
        missing, unexpected = module_rref.local_value().load_state_dict(state_dict, strict=False)
    except RuntimeError as error:
        return [], [], str(error)
    return list(missing), list(unexpected), ""


def change(module_rref: RRef, method: str, *args: Any) -> None:
    """Calls a method of ``nn.Module`` that changes the module and returns nothing of use."""
    if method not in _CHANGES:  # a peer that may call this function may not call every method
        raise ValueError(f"not a change of a module: {method!r}")
    getattr(module_rref.local_value(), method)(*args)


def cast(
    module_rref: RRef,
    floating: torch.dtype | None,
    complex_: torch.dtype | None,
    integer: torch.dtype | None,
) -> None:
    """Casts the parameters and buffers of each kind; None keeps them. Bools are integers here."""

    def made(tensor: Tensor) -> Tensor:
        dtype = (
            floating if tensor.is_floating_point() else complex_ if tensor.is_complex() else integer
        )
        return tensor if dtype is None else tensor.to(dtype)

    module_rref.local_value()._apply(made)


def describe(module_rref: RRef) -> str:
    return repr(module_rref.local_value())


def is_training(module_rref: RRef) -> bool:
    return module_rref.local_value().training


def signature(module_rref: RRef) -> Signature:
    """The types of the module's ``forward``."""
    return signature_of(module_rref.local_value())


def publish_as(module_rref: RRef, name: str, device: str) -> int:
    return publish(name, _served(module_rref.local_value(), device))
