"""The cost of each layer of a Sequential: time, or memory in training.

Each layer is copied to the device, runs there on the output of the layer before it, and is freed
before the next, so the whole model need not fit. The model, its gradients and the caller's random
numbers stay as they are.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from weft.pipe._whole import WholeSequential, with_mark, without_mark
from weft.pipe.skip._store import SkipStore, use_store

T = TypeVar("T")
Arguments = tuple[Any, ...]
#: Runs a layer on arguments and skips, and leaves the skips as after one run; cost and output.
Measure = Callable[[nn.Module, Arguments, SkipStore], tuple[float, Any]]
#: One tensor per storage. It keeps the storage alive, so that no other gets the same address.
Saved = dict[int, Tensor]

_WARM_UP, _FEWEST = 1, 3  # runs that are not counted, and the fewest that are


def seconds(
    module: nn.Sequential, args: Arguments, device: torch.device, timeout: float
) -> list[float]:
    """Time of forward and backward of each layer: the median of as many runs as its share allows."""
    share = timeout / max(len(module), 1)

    def measure(layer: nn.Module, args: Arguments, skips: SkipStore) -> tuple[float, Any]:
        spent: list[float] = []
        until = time.perf_counter() + share
        while True:
            store = _fresh(skips)
            time_taken, output = _timed(layer, _fresh(args), store, device)
            spent.append(time_taken)
            if len(spent) >= _WARM_UP + _FEWEST and time.perf_counter() >= until:
                break
        skips.clear()
        skips.update(store)
        return statistics.median(spent[_WARM_UP:]), output

    return _walk(module, args, device, measure)[0]


def saved_bytes(
    module: nn.Sequential, args: Arguments, device: torch.device, parameter_copies: float
) -> list[float]:
    """Bytes that each layer keeps between forward and backward, plus copies of its parameters.

    Autograd's saved-tensor hooks count them, exactly on any device: each storage once, without
    parameters and buffers.
    """

    def measure(layer: nn.Module, args: Arguments, skips: SkipStore) -> tuple[float, Any]:
        saved: Saved = {}
        output = _saving(layer, _fresh(args), skips, saved)
        parameters = sum(p.untyped_storage().nbytes() for p in layer.parameters())
        return _size(saved) + parameters * parameter_copies, output

    return _walk(module, args, device, measure)[0]


def kept(
    module: nn.Sequential, args: Arguments, skips: SkipStore, device: torch.device
) -> tuple[int, Arguments, SkipStore]:
    """Bytes that all layers together keep between forward and backward, each storage once.

    Also returns the last layer's output, as arguments, and the skips that wait for their pop.
    """
    saved: Saved = {}

    def measure(layer: nn.Module, args: Arguments, skips: SkipStore) -> tuple[float, Any]:
        return 0.0, _saving(layer, args, skips, saved)

    _, output, skips = _walk(module, args, device, measure, skips)
    if isinstance(module, WholeSequential):
        result = with_mark(output)
    else:
        result = tuple(output) if isinstance(output, (tuple, list)) else (output,)
    return _size(saved), _leaves_on(device, result), skips


def _saving(layer: nn.Module, args: Arguments, skips: SkipStore, saved: Saved) -> Any:
    """Runs the layer, and adds to ``saved`` what autograd keeps besides the layer's own tensors."""
    own = {_storage(tensor) for tensor in (*layer.parameters(), *layer.buffers())}

    def pack(tensor: Tensor) -> Tensor:
        if _storage(tensor) not in own:
            saved[_storage(tensor)] = tensor.detach()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with use_store(skips):
            return layer(*args)


def _size(saved: Saved) -> int:
    return sum(one.untyped_storage().nbytes() for one in saved.values())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _timed(
    layer: nn.Module, args: Arguments, skips: SkipStore, device: torch.device
) -> tuple[float, Any]:
    _synchronise(device)
    began = time.perf_counter()
    with use_store(skips):
        output = layer(*args)
    leaves = pytree.tree_leaves((output, list(skips.values())))
    roots = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    if roots:
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    _synchronise(device)
    return time.perf_counter() - began, output


def _walk(
    module: nn.Sequential,
    args: Arguments,
    device: torch.device,
    measure: Measure,
    skips: SkipStore | None = None,
) -> tuple[list[float], Any, SkipStore]:
    """The layers' costs, the last one's output, and the skips that wait for their pop."""
    costs: list[float] = []
    is_whole = isinstance(module, WholeSequential)
    if is_whole:
        args = (without_mark(args),)
    output: Any = args
    skips = skips if skips is not None else {}
    with _undisturbed(device):
        for name, layer in zip(module._modules, module, strict=True):
            args = _leaves_on(device, args)
            skips = _leaves_on(device, skips)
            try:
                cost, output = measure(copy.deepcopy(layer).to(device).train(), args, skips)
            except Exception as error:
                raise RuntimeError(f"layer '{name}' failed on {device}: {error}") from error
            costs.append(cost)
            args = output if isinstance(output, tuple) and not is_whole else (output,)
    return costs, output, skips


@contextlib.contextmanager
def _undisturbed(device: torch.device) -> Iterator[None]:
    """Keeps the caller's random numbers; turns gradients on."""
    if device.type in ("cpu", "meta"):
        forked = torch.random.fork_rng([])
    else:
        forked = torch.random.fork_rng([device], device_type=device.type)
    with forked, torch.enable_grad():
        yield


def _leaves_on(device: torch.device, value: T) -> T:
    """The value with its tensors on the device, detached."""

    def moved(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    return pytree.tree_map_only(Tensor, moved, value)


def _fresh(value: T) -> T:
    """Copies of the tensors, so that a layer that works in place can run again."""
    return pytree.tree_map_only(Tensor, Tensor.clone, value)


def _synchronise(device: torch.device) -> None:
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)
