"""One micro-batch at a stage: which one it is, and what is kept of it for its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from weft.pipe._workers.values import Versions

#: Values that came or go along skip connections, by the connections' numbers.
Skips = dict[int, Tensor | None]


class MicroBatch(NamedTuple):
    """The micro-batch that a stage runs."""

    stage: int
    number: int
    count: int  # of the mini-batch
    run_number: int  # of the mini-batch among all that this process runs


class Backward(NamedTuple):
    """What a backward is to do."""

    retain: bool = False  # keeps the graph for another one
    parameters: bool = True  # False: gradients of the inputs alone
    context: int | None = None  # of torch.distributed.autograd, which gets parameters' gradients


class Held(NamedTuple):
    """What is kept of one micro-batch between its forward and its backward."""

    inputs: list[Tensor]  # leaves whose gradients the stage before wants
    popped: dict[int, Tensor]  # likewise, from skip connections
    outputs: list[Tensor]  # the next stage gives their gradients, or the loss
    stashed: dict[int, Tensor]  # likewise, for skip connections
    versions: Versions  # of the inputs that a recomputation needs
    changes: int | None  # as ParameterChanges.count; None if nothing runs again
    #: Recomputation.repeat, which gives the graph; None: outputs and what is stashed have it.
    repeat: Callable[[Held], Held] | None = None
    loss: Tensor | None = None  # of outputs that have no graph
