"""What the driver and the workers tell each other about a mini-batch."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch.distributed.rpc as rpc
from torch import Tensor

from weft import _C
from weft.pipe._workers.graph import Graph
from weft.pipe._workers.micro_batch import Backward
from weft.pipe._workers.parcels import Parcel
from weft.pipe._workers.schedule import BACKWARD, FORWARD, PlanSpec, Task, worker_of

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


class Work(enum.Enum):
    """What a mini-batch does."""

    STEP = enum.auto()  # forward, loss and backward
    FORWARD = enum.auto()
    FORWARD_WITH_GRAPH = enum.auto()  # keeps what backwards need
    BACKWARD = enum.auto()  # of what such a forward kept

    @property
    def only(self) -> str | None:
        """The one kind of its tasks; None: of all kinds."""
        if self is Work.STEP:
            return None
        return BACKWARD if self is Work.BACKWARD else FORWARD


class Job(NamedTuple):
    """One mini-batch, as all workers are told of it."""

    work: Work
    plan_spec: PlanSpec
    recompute: list[bool]  # for each micro-batch
    mini_batch: int = 0  # its number
    recorded: bool = False  # whether the outcome says when each task ran
    criterion: Callable[[Any, Any], Tensor] | None = None  # in a step, at the last stage's workers
    weights: Sequence[float] = ()  # of each micro-batch's loss
    #: For the last stage's worker: the targets of the whole mini-batch, or, in a backward alone, the
    #: gradients of its output.
    given: Parcel | None = None
    graph: Graph | rpc.PyRRef | None = None  # keeps a forward for backwards alone
    backward: Backward = Backward()


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
