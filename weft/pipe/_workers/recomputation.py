"""How a stage runs again for a backward, and whether its parameters are as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

from weft import _C
from weft.pipe._workers.micro_batch import MicroBatch, Skips
from weft.pipe._workers.values import (
    Versions,
    cut,
    have_changed,
    mapped,
    tensors_in,
    with_versions,
)

#: Runs the layers of a stage, of its arguments and what it pops; gives the output and what it stashes.
Call = Callable[[tuple[Any, ...], Skips], tuple[Any, Skips]]


def run_repeatably(
    call: Call, micro_batch: MicroBatch, device: str, arguments: tuple[Any, ...], skips: Skips
) -> tuple[Any, Skips]:
    """Keeps no activations; the backward calls it again, with the same random numbers.

    To its end, where it shows whether it has done the same.
    """
    draws = _C.pipe.RepeatedDraws(device, micro_batch.stage)
    sample: Any = None
    failure: list[BaseException] = []
    again = False

    def run(*arguments: Any) -> tuple[Any, Skips] | None:
        nonlocal again, sample
        run_again, again = again, True
        if run_again:
            found = _run_again(call, micro_batch, arguments, skips, draws)
            if sample is not None:  # None: the first run asks for a gradient of its own
                sample.check_repeated(_tensors_of(*found), micro_batch.stage)
            return found
        try:
            with _C.pipe.StageRun(*micro_batch, checkpointing=True), draws:
                found = call(arguments, skips)
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


def _run_again(
    call: Call,
    micro_batch: MicroBatch,
    arguments: tuple[Any, ...],
    skips: Skips,
    draws: _C.pipe.RepeatedDraws,
) -> tuple[Any, Skips]:
    """Hooks that the stage puts on its inputs are there from the first run."""
    # backward() of a loss of a subclass switches off what subclasses do.
    with torch._C._EnableTorchFunction():
        arguments, popped = mapped(cut, (arguments, list(skips.values())))
        given = dict(zip(skips, popped, strict=True))
        with _C.pipe.StageRun(*micro_batch, recomputing=True), draws:
            return call(arguments, given)


def _tensors_of(output: Any, stashed: Skips) -> list[Tensor]:
    return tensors_in([output, *stashed.values()])


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
