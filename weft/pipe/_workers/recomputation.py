"""How a stage runs again for a backward, and whether its parameters are as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from weft import _C
from weft.pipe._workers.micro_batch import Held, MicroBatch, Skips
from weft.pipe._workers.values import (
    Versions,
    cut,
    have_changed,
    leaves,
    mapped,
    tensors_in,
    wants_gradient,
    with_versions,
)

#: Runs the layers of a stage, of its arguments and what it pops; gives the output and what it stashes.
Call = Callable[[tuple[Any, ...], Skips], tuple[Any, Skips]]


class Recomputation:
    """A stage's run of one micro-batch, of which nothing but the input is kept, and its repetitions.

    A repetition draws the same random numbers. It goes to the stage's end, where it shows whether it has
    given the same. (torch's checkpoint keeps the first run's graph instead, by hooks on saved tensors,
    under which TorchScript and torch.func do not run.)
    """

    def __init__(
        self,
        call: Call,
        micro_batch: MicroBatch,
        device: torch.device,
        arguments: tuple[Any, ...],
        skips: Skips,
    ) -> None:
        self._call = call
        self._micro_batch = micro_batch
        self._arguments = arguments
        self._skips = skips
        self._draws = _C.pipe.RepeatedDraws(str(device), micro_batch.stage)
        self._sample: Any = None
        self._wanting: list[bool] = []  # gradients, of the leaves of the output

    def first(self) -> tuple[Any, Skips]:
        """Runs it, and cuts what it gives off from the graph, which goes."""
        with _C.pipe.StageRun(*self._micro_batch, checkpointing=True), self._draws:
            output, stashed = self._call(*self._inputs())
        self._sample = _C.pipe.OutputSample(tensors_in([output, *stashed.values()]))
        self._wanting = [wants_gradient(leaf) for leaf in leaves(output)]
        return mapped(cut, output), {skip: mapped(cut, one) for skip, one in stashed.items()}

    def repeat(self, held: Held) -> Held:
        """Runs it again, with a graph. Returns what a run that keeps its graph holds.

        Args:
            held: what was held of the first run.

        Raises:
            RuntimeError: it gave something else.
        """
        with _as_at_first(), _C.pipe.StageRun(*self._micro_batch, recomputing=True), self._draws:
            arguments, skips = self._inputs()
            inputs = [leaf for leaf in leaves(arguments) if wants_gradient(leaf)]
            popped = {skip: one for skip, one in skips.items() if wants_gradient(one)}
            output, stashed = self._call(arguments, skips)
        found = leaves(output)
        wanting = [wants_gradient(leaf) for leaf in found]
        self._sample.check_repeated(
            tensors_in([output, *stashed.values()]), self._micro_batch.stage
        )
        if wanting != self._wanting:
            raise RuntimeError(
                f"stage {self._micro_batch.stage} gave {sum(wanting)} tensors that require a gradient when "
                f"it ran again for the backward, and {sum(self._wanting)} before: return the same in "
                "both, also where is_recomputing() is true"
            )
        outputs = [leaf for leaf, wants in zip(found, wanting, strict=True) if wants]
        return held._replace(
            inputs=inputs,
            popped=popped,
            outputs=outputs,
            stashed={skip: stashed[skip] for skip in held.stashed},
        )

    def _inputs(self) -> tuple[tuple[Any, ...], Skips]:
        """As leaves of this run, so that a hook which the stage puts on one is there once."""
        arguments, popped = mapped(cut, (self._arguments, list(self._skips.values())))
        return arguments, dict(zip(self._skips, popped, strict=True))


@contextlib.contextmanager
def _as_at_first() -> Iterator[None]:
    """The state of a first run, on a thread that may be in a backward, or in autocast."""
    with contextlib.ExitStack() as state:
        state.enter_context(torch.enable_grad())
        # backward() of a loss of a subclass switches off what subclasses do.
        state.enter_context(torch._C._EnableTorchFunction())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                state.enter_context(torch.autocast(kind, enabled=False))
        yield


class ParameterChanges:
    """Notices that others than a stage have changed its parameters, from the first recomputation on.

    The stage's own runs may write them, as an embedding with max_norm does. Buffers are not watched,
    because batch norms write theirs.
    """

    def __init__(self, layers: nn.Module) -> None:
        self._layers = layers
        self._versions: Versions = []  # as the last run left them
        #: How many runs have found a change.
        self.count = 0

    def before_run(self) -> None:
        self.count += have_changed(self._versions)

    def after_run(self) -> None:
        if self._versions:
            self._note()

    def watch(self) -> None:
        """After a run that will be repeated: by then lazy parameters have their shapes."""
        if not self._versions:
            self._note()

    def since(self, count: int) -> bool:
        """Whether there was a change since there were so many."""
        return have_changed(self._versions) or self.count != count

    def _note(self) -> None:
        parameters = [one for one in self._layers.parameters() if not is_lazy(one)]
        self._versions = with_versions(parameters)
