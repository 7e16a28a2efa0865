"""What a mini-batch over workers refuses before it begins."""

from __future__ import annotations

import contextlib
import io
import pickle
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn, overrides
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from weft.pipe._workers.splitting import given_leaves


def check_loss(loss: Callable[[Any, Any], Tensor]) -> None:
    if isinstance(loss, torch.jit.ScriptFunction):
        raise ValueError(
            "a scripted function cannot be sent to the last stage's worker as the loss: give the "
            "function itself, or torch.jit.script of a module"
        )
    trained = _trained_by(loss)
    if trained:
        raise ValueError(
            f"the loss has parameters ({', '.join(trained)}), and each step gives its worker a new copy, "
            "whose gradients are lost: let the last layer have them, or switch off requires_grad"
        )


def _trained_by(loss: Callable[[Any, Any], Tensor]) -> list[str]:
    """What wants gradients of all that is sent with the loss."""
    if isinstance(loss, nn.Module):
        return _trained_in(loss)
    if isinstance(loss, types.FunctionType | types.BuiltinFunctionType):
        return []  # sent by its name
    finder = _FindsTrained(io.BytesIO())
    with contextlib.suppress(Exception):  # what cannot be pickled says so when it is sent
        finder.dump(loss)
    return finder.found


def _trained_in(module: nn.Module) -> list[str]:
    return [name for name, one in module.named_parameters() if one.requires_grad]


class _FindsTrained(pickle.Pickler):
    """Finds what wants gradients in what it pickles, without modules, tensors and RRefs themselves."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.found: list[str] = []

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            self.found += _trained_in(value)
        elif isinstance(value, Tensor):
            self.found += [f"one of size {list(value.shape)}"] if value.requires_grad else []
        elif not isinstance(value, rpc.PyRRef):
            return NotImplemented
        return object, ()


def check_surroundings(values: Any, backward: bool = True) -> None:
    """Refuses what is active here and would have no effect at the workers.

    Args:
        values: what is given to the pipeline.
        backward: whether it computes gradients.
    """
    if torch._C._are_functorch_transforms_active():
        raise ValueError(
            "a transform of torch.func is active here, and the stages' workers do not see it: use it "
            "inside the layers"
        )
    if forward_ad._current_level >= 0 and any(map(_has_tangent, given_leaves(values))):
        raise ValueError(
            "an input has a forward-mode gradient, which the stages' workers do not get: give "
            "torch.autograd.forward_ad.unpack_dual(x).primal, or use reverse mode"
        )
    for mode in overrides._get_current_function_mode_stack():
        # That of torch.set_default_device passes: each process has its own default.
        if not isinstance(mode, DeviceContext):
            raise ValueError(
                f"the torch function mode {type(mode).__name__} is active here, and the stages' workers "
                "do not see it: use it inside the layers"
            )
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        raise ValueError(
            "autocast is active here, and the stages' workers do not see it: use it inside the layers"
        )
    if backward and not torch.is_grad_enabled():
        raise ValueError(
            "gradients are off here (no_grad or inference_mode), and step computes them"
        )


def _has_tangent(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and forward_ad.unpack_dual(leaf).tangent is not None
