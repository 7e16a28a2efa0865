"""One mini-batch at one worker: its tasks, each of which waits for its input."""

from __future__ import annotations

import time
import traceback
from typing import Any

import torch

from weft import _C
from weft.pipe._workers.job import Abandoned, Done, Job, Key, Outcome, Sent
from weft.pipe._workers.parcels import pack, portable, unpack
from weft.pipe._workers.part import Part
from weft.pipe._workers.schedule import BACKWARD, FORWARD, WEIGHTS, Task
from weft.pipe._workers.splitting import split
from weft.pipe._workers.stage import Stage


def run_mini_batch(part: Part, job: Job, given: dict[Key, Any] | None = None) -> Outcome:
    """Runs a worker's tasks of a mini-batch.

    Args:
        part: the worker's stages.
        job: the mini-batch.
        given: what the driver, which runs this itself, has for its own stages.

    Raises:
        Abandoned: the mini-batch was given up, or the driver is lost.
        RuntimeError: a task failed, or what a neighbour needs could not be sent.
    """
    if part.arrivals.is_over(job.step):
        raise Abandoned("the mini-batch was over before it began here")
    run = Run(part, job, given or {})
    try:
        with torch.set_grad_enabled(job.criterion is not None):
            for task in job.tasks:
                run.task(task)
        run.wait_for_sent()
    finally:
        part.abandon(job.step, "the mini-batch is over")
        for stage in part.stages.values():
            stage.forget()
        part.settle()
    if run.outputs:  # of a forward, and the last stage is here
        part.keep_output(job.step, run.outputs)
    return Outcome(run.loss, tasks=run.done if job.recorded else ())


class Run:
    """One mini-batch at one worker, while it runs."""

    def __init__(self, part: Part, job: Job, given: dict[Key, Any]) -> None:
        self.part = part
        self.job = job
        self.loss = torch.zeros(())
        self.outputs: list[Any] = []
        self.done: list[Done] = []
        self._began = 0
        self._last = len(part.places) - 1
        self._later = {task.stage for task in job.tasks if task.kind == WEIGHTS}
        self._number = _C.pipe.next_mini_batch_number()
        self._own = given  # what this worker's stages have for each other
        self._targets: list[Any] = []
        if job.criterion is not None and job.targets is not None:
            self._targets = split(unpack(job.targets), len(job.weights))
        self._deliveries = _C.pipe.Deliveries(part.pipe)

    def task(self, task: Task) -> None:
        """Runs one; an error says which one it was."""
        self._began = time.monotonic_ns()
        try:
            {FORWARD: self._forward, BACKWARD: self._backward, WEIGHTS: self._weights}[task.kind](
                task
            )
        except Abandoned:
            raise
        except Exception as error:
            raise RuntimeError(
                f"stage {task.stage} of the Pipe, on worker '{self.part.name}', failed in the {task.kind} of "
                f"micro-batch {task.micro_batch}: {type(error).__name__}: {error}\n"
                f"{traceback.format_exc()}"
            ) from None

    def _forward(self, task: Task) -> None:
        stage, number = self.part.stages[task.stage], task.micro_batch
        value = self._take(Sent.input, task.stage, number)
        recompute = self.job.recompute
        with _C.pipe.StageRun(task.stage, number, len(recompute), self._number):
            output = self._computed(stage, task, value, recompute[number])
        self._worked(task)
        if task.stage < self._last:
            self._send(Sent.input, task.stage + 1, number, output)
        elif self.job.criterion is None:
            self.outputs.append(output)
        else:
            self.loss = self.loss + output

    def _computed(self, stage: Stage, task: Task, value: Any, recompute: bool) -> Any:
        """The stage's output, or the loss if it is the last one in training."""
        number, criterion = task.micro_batch, self.job.criterion
        if task.stage < self._last or criterion is None:
            return stage.forward(number, value, recompute)
        target, weight = self._targets[number], self.job.weights[number]
        return stage.loss(number, value, recompute, criterion, target, weight).cpu()

    def _backward(self, task: Task) -> None:
        number, gradients = task.micro_batch, None
        if task.stage < self._last:
            gradients = self._take(Sent.gradients, task.stage, number)
        stage = self.part.stages[task.stage]
        backward = stage.input_gradients if task.stage in self._later else stage.backward
        found = backward(number, gradients)
        self._worked(task)
        if task.stage > 0:
            self._send(Sent.gradients, task.stage - 1, number, found)

    def _weights(self, task: Task) -> None:
        self.part.stages[task.stage].weights(task.micro_batch)
        self._worked(task)

    def _take(self, what: Sent, stage: int, number: int) -> Any:
        if (what, stage, number) in self._own:
            return self._own.pop((what, stage, number))
        value = self.part.take((self.job.step, what, stage, number))
        self._began = time.monotonic_ns()  # it waited until now
        return value

    def _worked(self, task: Task) -> None:
        self.done.append(Done(task, self._began, time.monotonic_ns()))

    def _send(self, what: Sent, stage: int, number: int, value: Any) -> None:
        worker = self.part.places[stage].worker
        if worker == self.part.name:
            self._own[what, stage, number] = value
        else:
            key = (self.job.step, what, stage, number)
            self._deliveries.send(worker, key, *portable(pack(value, what == Sent.input), worker))

    def wait_for_sent(self) -> None:
        """Until the neighbours have what this worker sent them."""
        try:
            self._deliveries.wait()
        except RuntimeError as error:
            raise RuntimeError(f"worker '{self.part.name}': {error}") from None
