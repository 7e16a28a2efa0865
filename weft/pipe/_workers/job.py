"""What the driver and the workers tell each other about a mini-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed.rpc as rpc
from torch import Tensor

from weft import _C
from weft.pipe._workers.graph import Graph
from weft.pipe._workers.parcels import Parcel
from weft.pipe._workers.schedule import Order, Task, worker_of
from weft.pipe._workers.stage import Backward

Sent = _C.pipe.Sent


class StagePlace(NamedTuple):
    """Where a stage is: at one worker, or a replica of it at each of several."""

    workers: tuple[str, ...]
    devices: tuple[str, ...]

    @property
    def worker(self) -> str:
        """The worker of the stage, or of its first replica."""
        return self.workers[0]

    def worker_of(self, micro_batch: int) -> str:
        return worker_of(self.workers, micro_batch)

    def device_at(self, worker: str) -> str:
        return self.devices[self.workers.index(worker)]


class Job(NamedTuple):
    """One mini-batch, as all workers are told of it."""

    order: Order
    recompute: list[bool]  # for each micro-batch
    step: int = 0
    recorded: bool = False  # whether the outcome says when each task ran
    criterion: Callable[[Any, Any], Tensor] | None = None  # None: a forward or a backward alone
    weights: Sequence[float] = ()  # of each micro-batch's loss
    #: For the last stage's worker: the targets of the whole mini-batch, or, in a backward alone, the
    #: gradients of its output.
    given: Parcel | None = None
    graph: Graph | rpc.PyRRef | None = None  # keeps a forward for backwards alone
    backward: Backward | None = None  # a backward alone, of what the graph keeps


def loss_elsewhere(_output: Any, _target: Any) -> Tensor:
    """The ``criterion`` of a worker that does not have the last stage."""
    raise NotImplementedError


class Done(NamedTuple):
    """A task, and when it ran: nanoseconds of the worker's CLOCK_MONOTONIC."""

    task: Task
    begin: int
    end: int


class SkipRoute(NamedTuple):
    """A skip connection between stages."""

    begin: int  # the stage that stashes
    end: int  # the stage that pops


class Outcome(NamedTuple):
    """How a worker's part of a mini-batch ended."""

    loss: Tensor | None  # the sum of the losses that were computed there
    error: str = ""
    tasks: Sequence[Done] = ()  # where the job asked for them
    #: From the first stage's workers, by micro-batch: the gradients of the inputs that want one.
    gradients: Mapping[int, Sequence[Tensor | None]] = {}


def text_of(error: BaseException) -> str:
    """What an error says; its class where it says nothing, or where its ``__str__`` raises."""
    with contextlib.suppress(Exception):
        return str(error) or repr(error)
    return type(error).__name__


#: Names a value in a mini-batch: what it is, the stage or the skip connection, and the micro-batch.
Key = tuple[Sent, int, int]
Arrival = tuple[int, Sent, int, int]  # the same after the number of the mini-batch


class Abandoned(RuntimeError):
    """The mini-batch has ended elsewhere: a stage failed, a worker was lost, or the driver gave up."""
