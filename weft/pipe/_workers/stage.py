"""One stage at its worker: layers that run forward and backward, one micro-batch at a time.

The graph of autograd ends at the stage's border. What comes in becomes leaves; their gradients go
back to the stage before. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from weft import _C
from weft.pipe._partition import PipeSequential
from weft.pipe._workers.parcels import Apart

SplitBackward = _C.pipe.SplitBackward

_CHANGES_ITS_INPUT = (
    "the stage changes its input in place, and a recomputation needs the input as it was: "
    'use checkpoint="never", or let the stage\'s first operation make a new tensor'
)
_CHANGES_ONE_OF_SEVERAL = (
    "the stage changes one of its inputs in place, and others had the same memory in the stage before, "
    "which is on another worker: they do not change here. Give clones, or change a clone"
)


class _Held(NamedTuple):
    """Of one micro-batch between its forward and its backward."""

    inputs: list[Tensor]  # leaves whose gradients the stage before wants
    outputs: list[Tensor]  # of which the next stage gives the gradients; or the loss


class Stage:
    """Layers on one device.

    Args:
        layers: in order; a tuple that one gives becomes the next one's arguments.
        device: where they are.
    """

    def __init__(self, layers: Sequence[nn.Module], device: torch.device) -> None:
        self.layers = PipeSequential(*layers)
        self.device = device
        self._held: dict[int, _Held] = {}
        self._half_done: dict[int, SplitBackward] = {}

    def forward(self, micro_batch: int, value: Any, recompute: bool) -> Any:
        """The output for the next stage, cut off from this stage's graph.

        Without gradients (``torch.no_grad``) nothing is held for a backward.

        Args:
            micro_batch: its number.
            value: one value, or a tuple of arguments.
            recompute: whether activations are dropped, and computed again for the backward.
        """
        inputs, output = self._run(value, recompute)
        self._hold(micro_batch, inputs, [leaf for leaf in _leaves(output) if _wants_gradient(leaf)])
        return _mapped(_cut, output)

    def loss(
        self,
        micro_batch: int,
        value: Any,
        recompute: bool,
        criterion: Callable[[Any, Any], Tensor],
        target: Any,
        weight: float,
    ) -> Tensor:
        """As :meth:`forward` in the last stage; the loss of the micro-batch, times its weight."""
        inputs, output = self._run(value, recompute)
        loss = criterion(output, _placed(target, self.device))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise ValueError(
                f"the loss of a micro-batch must be a tensor of one number, got {loss!r}"
            )
        loss = loss * weight
        self._hold(micro_batch, inputs, [loss] if loss.requires_grad else [])
        return loss.detach()

    def backward(
        self, micro_batch: int, gradients: Sequence[Tensor | None] | None
    ) -> list[Tensor | None]:
        """Gradients of the inputs that want one; None for those that the output does not depend on.

        Args:
            micro_batch: its number.
            gradients: of the outputs that want one, in order; None for the loss.
        """
        held = self._held.pop(micro_batch)
        outputs, found = self._given(held, gradients)
        if outputs:
            torch.autograd.backward(outputs, found)
        return [leaf.grad for leaf in held.inputs]

    def input_gradients(
        self, micro_batch: int, gradients: Sequence[Tensor | None] | None
    ) -> list[Tensor | None]:
        """As :meth:`backward`, but parameters get their gradients in :meth:`weights`.

        Where the graph does not allow that, they get them here.
        """
        held = self._held.pop(micro_batch)
        outputs, found = self._given(held, gradients)
        if not outputs:
            return [None] * len(held.inputs)
        half = self._half_done[micro_batch] = SplitBackward(outputs, held.inputs)
        return half.input_gradients(found)

    def weights(self, micro_batch: int) -> None:
        """What :meth:`input_gradients` left: adds to the parameters' gradients."""
        half = self._half_done.pop(micro_batch, None)
        if half is not None:
            half.accumulate_parameter_gradients()

    def _given(
        self, held: _Held, gradients: Sequence[Tensor | None] | None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs that have a gradient, and these: ones for the loss."""
        if gradients is None:
            return held.outputs, [torch.ones_like(output) for output in held.outputs]
        placed = zip(held.outputs, _placed(list(gradients), self.device), strict=True)
        pairs = [(output, found) for output, found in placed if found is not None]
        return [output for output, _ in pairs], [found for _, found in pairs]

    def forget(self) -> None:
        """Drops what is held for backwards: the mini-batch has ended early."""
        self._held.clear()
        self._half_done.clear()

    @property
    def held(self) -> int:
        """How many micro-batches something is kept of."""
        return len(self._held) + len(self._half_done)

    def _run(self, value: Any, recompute: bool) -> tuple[list[Tensor], Any]:
        again = recompute and torch.is_grad_enabled()
        apart = isinstance(value, Apart)
        value = _placed(value.value if apart else value, self.device)
        inputs = [leaf for leaf in _leaves(value) if _wants_gradient(leaf)]
        arguments = value if isinstance(value, tuple) else (value,)
        if not again and not apart:
            return inputs, self.layers(*arguments)
        tensors = [leaf for leaf in _leaves(value) if isinstance(leaf, Tensor)]
        versions = [tensor._version for tensor in tensors]
        if again:
            output = checkpoint(self.layers, *arguments, use_reentrant=False)
        else:
            output = self.layers(*arguments)
        if versions != [tensor._version for tensor in tensors]:
            raise RuntimeError(_CHANGES_ITS_INPUT if again else _CHANGES_ONE_OF_SEVERAL)
        return inputs, output

    def _hold(self, micro_batch: int, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        if torch.is_grad_enabled():
            self._held[micro_batch] = _Held(inputs, outputs)


def _leaves(value: Any) -> list[Any]:
    """Each once, also where the value has it twice."""
    if isinstance(value, Tensor):
        return [value]
    return list({id(leaf): leaf for leaf in pytree.tree_leaves(value)}.values())


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tensor that occurs twice stays one."""
    if isinstance(value, Tensor):
        return function(value)
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = tensor, function(tensor)
        return made[id(tensor)][1]

    return pytree.tree_map_only(Tensor, once, value)


def _wants_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def _cut(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _placed(value: Any, device: torch.device) -> Any:
    """The value with its tensors on the device, as leaves of a graph to come."""

    def place(tensor: Tensor) -> Tensor:
        if tensor.device == device:
            return tensor
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

    return _mapped(place, value)
