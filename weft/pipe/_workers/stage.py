"""One stage at its worker: layers that run forward and backward, one micro-batch at a time.

The graph of autograd ends at the stage's border. What comes in becomes leaves; their gradients go
back to the stages that it came from. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from weft import _C
from weft.pipe._partition import PipeSequential
from weft.pipe._workers.parcels import LostSharing
from weft.pipe._workers.values import (
    Versions,
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

#: Values that came or go along skip connections, by the connections' numbers.
Skips = dict[int, Tensor | None]

_CHANGES_ITS_INPUT = (
    "the stage changes its input in place, and a recomputation needs the input as it was: "
    'use checkpoint="never", or let the stage\'s first operation make a new tensor'
)
_CHANGES_ONE_OF_SEVERAL = (
    "the stage changes one of its inputs in place, and others had the same memory in the stage before, "
    "which is on another worker: they do not change here. Give clones, or change a clone"
)
_INPUT_HAS_CHANGED = (
    "an input of the stage was changed in place after its forward, and the recomputation for the "
    'backward needs it as it was: change a clone, or use checkpoint="never"'
)
_PARAMETER_HAS_CHANGED = (
    "a parameter of the stage was changed in place after its forward, and the recomputation for the "
    "backward needs it as it was: call backward() before an optimizer steps or a state is loaded"
)
_LEAVES_GRADIENTS_OFF = (
    "a layer of the stage, or the loss, switches gradients off with torch.set_grad_enabled(False) and "
    "leaves them off: use `with torch.no_grad():`, which ends"
)
_HAS_NO_GRAPH = (
    "the loss of a micro-batch does not require a gradient, so that a step trains nothing: the loss is "
    "detached or an integer, or all parameters are frozen. For a loss without training, compute it of "
    "the output of pipe(inputs)"
)
#: What torch says of it, and what is added to that; a parameter may be meant as well.
_A_LEAF = "leaf Variable that requires grad"
_LEAF_IS_INPUT = (
    "If that is the stage's input: let the stage's first operation make a new tensor "
    "(inplace=False)."
)


class MicroBatch(NamedTuple):
    """The micro-batch that a stage runs."""

    stage: int
    number: int
    count: int  # of the mini-batch
    mini_batch: int


class Backward(NamedTuple):
    """What a backward is to do."""

    retain: bool = False  # keeps the graph for another one
    parameters: bool = True  # False: gradients of the inputs alone
    context: int | None = None  # of torch.distributed.autograd, which gets parameters' gradients


class Held(NamedTuple):
    """What is kept of one micro-batch between its forward and its backward."""

    inputs: list[Tensor]  # leaves whose gradients the stage before wants
    popped: dict[int, Tensor]  # likewise, from skip connections
    outputs: list[Tensor]  # the next stage gives their gradients; or the loss
    stashed: dict[int, Tensor]  # likewise, for skip connections
    versions: Versions  # of the inputs that a recomputation needs
    #: How often others than the stage had changed its parameters; None if nothing runs again. Buffers
    #: are not watched, because batch norms write theirs.
    changes: int | None


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
        #: The parameters as the stage's last run left them, which may write them, as an embedding with
        #: max_norm does; and how often a run found them changed. From the first recomputation on.
        self._parameters: Versions = []
        self._changes = 0

    def forward(
        self, at: MicroBatch, value: Any, skips: Skips, recompute: bool
    ) -> tuple[Any, Skips]:
        """The output for the next stage and what is stashed, cut off from this stage's graph.

        Without gradients (``torch.no_grad``) nothing is held for a backward.

        Args:
            at: the micro-batch.
            value: one value, or a tuple of arguments.
            skips: what came along skip connections.
            recompute: whether activations are dropped, and computed again for the backward.
        """
        held, output, stashed = self._run(at, value, skips, recompute)
        held.outputs.extend(leaf for leaf in leaves(output) if wants_gradient(leaf))
        held.stashed.update({at: one for at, one in stashed.items() if wants_gradient(one)})
        self._hold(at.number, held)
        return mapped(cut, output), {at: mapped(cut, one) for at, one in stashed.items()}

    def loss(
        self,
        at: MicroBatch,
        value: Any,
        skips: Skips,
        recompute: bool,
        criterion: Callable[[Any, Any], Tensor],
        target: Any,
        weight: float,
    ) -> Tensor:
        """As :meth:`forward`, in the last stage. Returns the micro-batch's loss, times its weight."""
        held, output, _ = self._run(at, value, skips, recompute)
        loss = criterion(output, placed(target, self.device))
        _check_gradients_are_on()
        if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.is_complex():
            raise ValueError(
                f"the loss of a micro-batch must be a tensor of one real number, got {loss!r}"
            )
        if not loss.requires_grad:
            raise ValueError(_HAS_NO_GRAPH)
        loss = loss.reshape(()) * weight
        held.outputs.append(loss)
        self._hold(at.number, held)
        return loss.detach()

    def backward(
        self,
        micro_batch: int,
        gradients: Sequence[Tensor | None] | None,
        skips: Skips,
        how: Backward,
    ) -> tuple[list[Tensor | None], Skips]:
        """Runs the backward. Returns the gradients of inputs that want one, and of what was popped.

        A gradient is None if the output does not depend on the tensor.

        Args:
            micro_batch: its number.
            gradients: of the outputs that want one, in order; None for the loss.
            skips: the gradients of what was stashed.
            how: what else to do.
        """
        held = self._held[micro_batch] if how.retain else self._held.pop(micro_batch)
        outputs, found = self._given(held, gradients, skips)
        return _of(held, _gradients(outputs, found, [*held.inputs, *held.popped.values()], how))

    def input_gradients(
        self, micro_batch: int, gradients: Sequence[Tensor | None] | None, skips: Skips
    ) -> tuple[list[Tensor | None], Skips]:
        """As :meth:`backward`, but parameters get their gradients in :meth:`weights`.

        Where the graph does not allow that, they get them here.
        """
        held = self._held.pop(micro_batch)
        outputs, found = self._given(held, gradients, skips)
        inputs = [*held.inputs, *held.popped.values()]
        if not outputs:
            return _of(held, [None] * len(inputs))
        half = SplitBackward(outputs, inputs)
        if not half.is_split():  # it adds to gradients now, and those before it come first
            for earlier in sorted(self._half_done):
                self.weights(earlier)
        self._half_done[micro_batch] = half
        return _of(held, half.input_gradients(found))

    def weights(self, micro_batch: int) -> None:
        """Adds to the parameters' gradients what :meth:`input_gradients` left."""
        half = self._half_done.pop(micro_batch, None)
        if half is not None:
            half.accumulate_parameter_gradients()

    def stashed_with_gradient(self, micro_batch: int) -> list[int]:
        """The skip connections that give a gradient back."""
        return list(self._held[micro_batch].stashed)

    def _given(
        self, held: Held, gradients: Sequence[Tensor | None] | None, skips: Skips
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The outputs that have a gradient, and their gradients; the loss has the gradient 1."""
        if have_changed(held.versions):
            raise RuntimeError(_INPUT_HAS_CHANGED)
        if gradients is None:
            gradients = [torch.ones_like(output) for output in held.outputs]
        outputs = [*held.stashed.values(), *held.outputs]
        found = placed([*(skips[at] for at in held.stashed), *gradients], self.device)
        pairs = [pair for pair in zip(outputs, found, strict=True) if pair[1] is not None]
        runs_again = pairs and held.changes is not None
        if runs_again and (have_changed(self._parameters) or held.changes != self._changes):
            raise RuntimeError(_PARAMETER_HAS_CHANGED)
        return [output for output, _ in pairs], [one for _, one in pairs]

    def forget(self) -> None:
        """Drops what is held for backwards: the mini-batch has ended early."""
        self._held.clear()
        self._half_done.clear()

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
        self, at: MicroBatch, value: Any, skips: Skips, recompute: bool
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
            {at: one for at, one in skips.items() if wants_gradient(one)},
            [],
            {},
            versions if again else [],
            None,
        )
        arguments = value if isinstance(value, tuple) else (value,)
        run = self._repeatable if again else self._once
        try:
            output, stashed = run(at, arguments, skips)
        except RuntimeError as error:
            if _A_LEAF not in str(error):
                raise
            raise RuntimeError(f"{error} {_LEAF_IS_INPUT}") from error
        if with_graph:
            _check_gradients_are_on()
        if have_changed(versions):
            raise RuntimeError(_CHANGES_ITS_INPUT if again else _CHANGES_ONE_OF_SEVERAL)
        if again:
            if not self._parameters:  # after the run, which gives lazy ones their shapes
                self._note_parameters()
            held = held._replace(changes=self._changes)
        return held, output, stashed

    def _once(self, at: MicroBatch, arguments: tuple[Any, ...], skips: Skips) -> tuple[Any, Skips]:
        with _C.pipe.StageRun(*at):
            return self._call(arguments, skips)

    def _repeatable(
        self, at: MicroBatch, arguments: tuple[Any, ...], skips: Skips
    ) -> tuple[Any, Skips]:
        """Keeps no activations; the backward runs it again, with the same random numbers.

        To its end, where it shows whether it has done the same.
        """
        draws = _C.pipe.RepeatedDraws(str(self.device), at.stage)
        sample: Any = None
        failure: list[BaseException] = []
        again = False

        def run(*arguments: Any) -> tuple[Any, Skips] | None:
            nonlocal again, sample
            run_again, again = again, True
            if run_again:
                found = self._call_again(at, arguments, skips, draws)
                if sample is not None:  # None: the first run asks for a gradient of its own
                    sample.check_repeated(_tensors_of(*found), at.stage)
                return found
            try:
                with _C.pipe.StageRun(*at, checkpointing=True), draws:
                    found = self._call(arguments, skips)
            except BaseException as error:
                # Not through torch's checkpoint: a traceback that somebody keeps would keep its hooks
                # on this thread.
                failure.append(error)
                return None
            sample = _C.pipe.OutputSample(_tensors_of(*found))
            return found

        found = checkpoint(
            run, *arguments, use_reentrant=False, preserve_rng_state=False, early_stop=False
        )
        if failure:
            raise failure.pop()
        return found

    def _call_again(
        self, at: MicroBatch, arguments: tuple[Any, ...], skips: Skips, draws: _C.pipe.RepeatedDraws
    ) -> tuple[Any, Skips]:
        """Hooks that the stage puts on its inputs are there from the first run."""
        # backward() of a loss of a subclass switches off what subclasses do.
        with torch._C._EnableTorchFunction():
            arguments, popped = mapped(cut, (arguments, list(skips.values())))
            given = dict(zip(skips, popped, strict=True))
            with _C.pipe.StageRun(*at, recomputing=True), draws:
                return self._call(arguments, given)

    def _call(self, arguments: tuple[Any, ...], skips: Skips) -> tuple[Any, Skips]:
        self._changes += have_changed(self._parameters)
        with use_store({self.pops[at]: one for at, one in skips.items()}) as store:
            output = self.layers(*arguments)
        if self._parameters:
            self._note_parameters()
        return output, {at: store.pop(key) for at, key in self.stashes.items()}

    def _note_parameters(self) -> None:
        self._parameters = with_versions(
            [one for one in self.layers.parameters() if not is_lazy(one)]
        )

    def _hold(self, micro_batch: int, held: Held) -> None:
        if torch.is_grad_enabled():
            self._held[micro_batch] = held


def _check_gradients_are_on() -> None:
    if not torch.is_grad_enabled():
        raise RuntimeError(_LEAVES_GRADIENTS_OFF)


def _tensors_of(output: Any, stashed: Skips) -> list[Tensor]:
    return tensors_in([output, *stashed.values()])


def _gradients(
    outputs: list[Tensor], found: list[Tensor], inputs: list[Tensor], how: Backward
) -> list[Tensor | None]:
    """The gradients of the inputs. Those of parameters are added to ``.grad`` or to the context."""
    if not outputs or (not inputs and not how.parameters):
        return [None] * len(inputs)
    if how.parameters and how.context is None:
        torch.autograd.backward(outputs, found, retain_graph=how.retain)
        gradients = [leaf.grad for leaf in inputs]
        for leaf in inputs:
            leaf.grad = None
        return gradients
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
