"""What driver and workers tell each other of a mini-batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from weft import _C
from weft.pipe._workers.parcels import Parcel
from weft.pipe._workers.schedule import Task

Sent = _C.pipe.Sent


class StagePlace(NamedTuple):
    """Where a stage is."""

    worker: str
    device: str


class Job(NamedTuple):
    """One mini-batch, as all workers are told of it."""

    step: int
    tasks: list[Task]
    criterion: Callable[[Any, Any], Tensor] | None  # None: a forward alone
    targets: Parcel | None  # of the whole mini-batch; None but at the last stage's worker
    weights: list[float]  # of each micro-batch's loss
    recompute: list[bool]  # for each micro-batch
    recorded: bool  # whether it is told when each task ran


class Done(NamedTuple):
    """A task, and when it ran: nanoseconds of the worker's CLOCK_MONOTONIC."""

    task: Task
    begin: int
    end: int


class Outcome(NamedTuple):
    """How a worker's part of a mini-batch ended."""

    loss: Tensor | None  # the sum of the losses that were computed there
    error: str = ""
    tasks: Sequence[Done] = ()  # where the job asked for them


Key = tuple[Sent, int, int]  # of a value in a mini-batch: what, stage, micro-batch
Arrival = tuple[int, Sent, int, int]  # the same after the number of the mini-batch


class Abandoned(RuntimeError):
    """The mini-batch has ended elsewhere: a stage failed, a worker was lost, or the driver gave up."""
