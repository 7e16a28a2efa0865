"""One stage at its worker: layers that run forward and backward, one micro-batch at a time.

The graph of autograd ends at the stage's border. What comes in becomes leaves; their gradients go
back to the stages that it came from. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft import _C
from weft.pipe._partition import PipeSequential
from weft.pipe._workers.micro_batch import Backward, Held, MicroBatch, Skips
from weft.pipe._workers.parcels import LostSharing
from weft.pipe._workers.recomputation import ParameterChanges, Recomputation
from weft.pipe._workers.values import (
    cut,
    have_changed,
    leaves,
    mapped,
    placed,
    tensors_in,
    wants_gradient,
    with_versions,
)
from weft.pipe.skip._store import SkipKey, use_store

SplitBackward = _C.pipe.SplitBackward

_PARAMETER_HAS_CHANGED = (
    "a parameter of the stage was changed in place after its forward, and the recomputation for the "
    "backward needs it as it was: call backward() before an optimizer steps or a state is loaded"
)


class Stage:
    """Layers on one device.

    Args:
        layers: in order; a tuple that one gives becomes the next one's arguments.
        device: where they are.
        shared: the buffers of which a stage elsewhere has a copy, by their names in the stage.
    """

    def __init__(
        self, layers: Sequence[nn.Module], device: torch.device, shared: Sequence[str] = ()
    ) -> None:
        self.layers = PipeSequential(*layers)
        self.device = device
        self.shared = shared
        #: The skip connections that end here, and those that begin here and end in another stage:
        #: these in the order in which autograd would sum their gradients, the last stage's first.
        self.pops: dict[int, SkipKey] = {}
        self.stashes: dict[int, SkipKey] = {}
        self._held: dict[int, Held] = {}
        self._half_done: dict[int, SplitBackward] = {}
        self._changes = ParameterChanges(self.layers)

    def forward(
        self, micro_batch: MicroBatch, value: Any, skips: Skips, recompute: bool
    ) -> tuple[Any, Skips]:
        """The output for the next stage and what is stashed, cut off from this stage's graph.

        Without gradients (``torch.no_grad``) nothing is held for a backward.

        Args:
            micro_batch: which one it is.
            value: one value, or a tuple of arguments.
            skips: what came along skip connections.
            recompute: whether activations are dropped, and computed again for the backward.
        """
        held, output, stashed = self._run(micro_batch, value, skips, recompute)
        held.outputs.extend(leaf for leaf in leaves(output) if wants_gradient(leaf))
        held.stashed.update({skip: one for skip, one in stashed.items() if wants_gradient(one)})
        self._hold(micro_batch.number, held)
        return mapped(cut, output), {skip: mapped(cut, one) for skip, one in stashed.items()}

    def loss(
        self,
        micro_batch: MicroBatch,
        value: Any,
        skips: Skips,
        recompute: bool,
        criterion: Callable[[Any, Any], Tensor],
        target: Any,
        weight: float,
    ) -> Tensor:
        """As :meth:`forward`, in the last stage. Returns the micro-batch's loss, times its weight."""
        held, output, _ = self._run(micro_batch, value, skips, recompute)
        if held.repeat is not None:
            held.outputs.extend(leaf for leaf in leaves(output) if wants_gradient(leaf))
            output = mapped(_C.pipe.alias, output)
        loss = criterion(output, placed(target, self.device))
        _check_gradients_are_on()
        if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex():
            raise ValueError(
                f"the loss of a micro-batch must be a tensor of one real number, got {loss!r}"
            )
        if not loss.requires_grad:
            raise ValueError(_C.pipe.HAS_NO_GRAPH)
        if weight == 0:  # it counts nothing, and as a mean of nothing has no number and no gradient
            self._hold(micro_batch.number, held._replace(outputs=[], repeat=None))
            return loss.detach().new_zeros(())
        loss = loss.reshape(()) * weight
        if held.repeat is None:
            held.outputs.append(loss)
        else:
            held = held._replace(loss=loss)
        self._hold(micro_batch.number, held)
        return loss.detach()

    def backward(
        self,
        number: int,
        gradients: Sequence[Tensor | None] | None,
        skips: Skips,
        how: Backward,
    ) -> tuple[list[Tensor | None], Skips]:
        """Runs the backward. Returns the gradients of inputs that want one, and of what was popped.

        A gradient is None if the output does not depend on the tensor.

        Args:
            number: that of the micro-batch.
            gradients: of the outputs that want one, in order; None for the loss.
            skips: the gradients of what was stashed.
            how: what else to do.
        """
        held = self._held[number] if how.retain else self._held.pop(number)
        if have_changed(held.versions):
            raise RuntimeError(_C.pipe.INPUT_HAS_CHANGED)
        if held.loss is not None:
            gradients = _gradients([held.loss], [torch.ones_like(held.loss)], held.outputs, how)
        if held.repeat is not None and _any_gradient(gradients, skips):
            if self._changes.since(held.changes):
                raise RuntimeError(_PARAMETER_HAS_CHANGED)
            held = held.repeat(held)
        outputs, found = self._given(held, gradients, skips)
        return _of(held, _gradients(outputs, found, [*held.inputs, *held.popped.values()], how))

    def input_gradients(
        self, number: int, gradients: Sequence[Tensor | None] | None, skips: Skips
    ) -> tuple[list[Tensor | None], Skips]:
        """As :meth:`backward`, but parameters get their gradients in :meth:`weights`.

        Where the graph does not allow that, they get them here.
        """
        held = self._held.pop(number)
        outputs, found = self._given(held, gradients, skips)
        inputs = [*held.inputs, *held.popped.values()]
        if not outputs:
            return _of(held, [None] * len(inputs))
        half = SplitBackward(outputs, inputs)
        if not half.is_split():  # it adds to gradients now, and those before it come first
            for earlier in sorted(self._half_done):
                self.weights(earlier)
        self._half_done[number] = half
        return _of(held, half.input_gradients(found))

    def weights(self, number: int) -> None:
        """Adds to the parameters' gradients what :meth:`input_gradients` left."""
        half = self._half_done.pop(number, None)
        if half is not None:
            half.accumulate_parameter_gradients()

    def stashed_with_gradient(self, number: int) -> list[int]:
        """The skip connections that give a gradient back."""
        return list(self._held[number].stashed)

    def _given(
        self, held: Held, gradients: Sequence[Tensor | None] | None, skips: Skips
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs that have a gradient, and their gradients; the loss has the gradient 1."""
        if gradients is None:
            gradients = [torch.ones_like(output) for output in held.outputs]
        outputs = [*held.stashed.values(), *held.outputs]
        found = placed([*(skips[skip] for skip in held.stashed), *gradients], self.device)
        pairs = [pair for pair in zip(outputs, found, strict=True) if pair[1] is not None]
        return [output for output, _ in pairs], [one for _, one in pairs]

    def forget(self) -> None:
        """Drops what is held for backwards: the mini-batch has ended early."""
        self._held.clear()
        self._half_done.clear()

    def on_device(self) -> torch.accelerator.device_index:
        """``with`` it, what the layers make on ``"cuda"`` is on the stage's own device."""
        index = None if self.device.type in ("cpu", "meta") else self.device.index
        return torch.accelerator.device_index(index)

    def give_held(self) -> dict[int, Held]:
        """What is held for backwards that come later, by micro-batch; here it is gone."""
        held, self._held = self._held, {}
        return held

    def take_held(self, held: dict[int, Held]) -> None:
        """Takes back what :meth:`give_held` gave."""
        self._held = held

    @property
    def held(self) -> int:
        """The number of micro-batches of which something is kept."""
        return len(self._held) + len(self._half_done)

    def _run(
        self, micro_batch: MicroBatch, value: Any, skips: Skips, recompute: bool
    ) -> tuple[Held, Any, Skips]:
        """Runs the layers. Returns what to hold of the inputs, the output, and what was stashed."""
        with_graph = torch.is_grad_enabled()
        again = recompute and with_graph
        given = [value, *skips.values()]
        lost = any(isinstance(one, LostSharing) for one in given)
        value, *popped = (
            placed(one.value if isinstance(one, LostSharing) else one, self.device) for one in given
        )
        skips = dict(zip(skips, popped, strict=True))
        tensors = tensors_in([value, popped])
        versions = with_versions(tensors) if again or lost else []
        held = Held(  # before the stage runs, which may call requires_grad_() on them
            [leaf for leaf in leaves(value) if wants_gradient(leaf)],
            {skip: one for skip, one in skips.items() if wants_gradient(one)},
            [],
            {},
            versions if again else [],
            None,
        )
        arguments = value if isinstance(value, tuple) else (value,)
        try:
            if again:
                recomputation = Recomputation(
                    self._call, micro_batch, self.device, arguments, skips
                )
                found = recomputation.first()
                held = held._replace(repeat=recomputation.repeat)
            else:
                with _C.pipe.StageRun(*micro_batch):
                    found = self._call(arguments, skips)
        except RuntimeError as error:
            if _C.pipe.A_LEAF not in str(error):
                raise
            raise RuntimeError(f"{error} {_C.pipe.LEAF_IS_INPUT}") from error
        if with_graph:
            _check_gradients_are_on()
        if have_changed(versions):
            raise RuntimeError(
                _C.pipe.CHANGES_ITS_INPUT if again else _C.pipe.CHANGES_ONE_OF_SEVERAL
            )
        if again:
            self._changes.watch()
            held = held._replace(changes=self._changes.count)
        return held, *found

    def _call(self, arguments: tuple[Any, ...], skips: Skips) -> tuple[Any, Skips]:
        self._changes.before_run()
        with use_store({self.pops[skip]: one for skip, one in skips.items()}) as store:
            output = self.layers(*arguments)
        self._changes.after_run()
        return output, {skip: store.pop(key) for skip, key in self.stashes.items()}

    def _hold(self, number: int, held: Held) -> None:
        if torch.is_grad_enabled():
            self._held[number] = held


def _any_gradient(gradients: Sequence[Tensor | None], skips: Skips) -> bool:
    return any(one is not None for one in (*gradients, *skips.values()))


def _check_gradients_are_on() -> None:
    if not torch.is_grad_enabled():
        raise RuntimeError(_C.pipe.LEAVES_GRADIENTS_OFF)


def _gradients(
    outputs: list[Tensor], found: list[Tensor], inputs: list[Tensor], how: Backward
) -> list[Tensor | None]:
    """The gradients of the inputs. Those of parameters are added to ``.grad`` or to the context."""
    if not outputs or (not inputs and not how.parameters):
        return [None] * len(inputs)
    if how.parameters and how.context is None:
        try:
            torch.autograd.backward(outputs, found, retain_graph=how.retain)
            return [leaf.grad for leaf in inputs]
        finally:  # a kept graph may run again after a failure, which has left some
            for leaf in inputs:
                leaf.grad = None
    parameters: list[Tensor] = []
    if how.parameters:
        own = set(map(id, inputs))
        parameters = [one for one in _C.pipe.leaves_of(outputs) if id(one) not in own]
    wanted = [*inputs, *parameters]
    if not wanted:
        return []
    gradients = list(
        torch.autograd.grad(outputs, wanted, found, retain_graph=how.retain, allow_unused=True)
    )
    if parameters:
        pairs = zip(parameters, gradients[len(inputs) :], strict=True)
        there = [(one, gradient) for one, gradient in pairs if gradient is not None]
        _C.pipe.add_to_context(
            how.context, [one for one, _ in there], [gradient for _, gradient in there]
        )
    return gradients[: len(inputs)]


def _of(held: Held, gradients: Sequence[Tensor | None]) -> tuple[list[Tensor | None], Skips]:
    """Gradients as two parts: those of the inputs, and those of what was popped."""
    count = len(held.inputs)
    return list(gradients[:count]), dict(zip(held.popped, gradients[count:], strict=True))
