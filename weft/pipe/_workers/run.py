"""One mini-batch at one worker: its tasks, each of which waits for its input."""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import Any

import torch
from torch import Tensor, nn

from weft import _C
from weft._observe import steps
from weft._torch.checkpoints import end_checkpoints
from weft.pipe._workers.graph import Graph
from weft.pipe._workers.job import Abandoned, Done, Job, Key, Outcome, Sent, text_of
from weft.pipe._workers.parcels import LostSharing, pack, portable, unpack
from weft.pipe._workers.part import Part
from weft.pipe._workers.replicas import (
    Replicas,
    Sums,
    unchanged_buffers,
    unchanged_in_replica,
    unchanged_loss,
)
from weft.pipe._workers.schedule import BACKWARD, FORWARD, WEIGHTS, Task
from weft.pipe._workers.scripted import SavedLoss, ScriptedRun, runs_in_cpp
from weft.pipe._workers.splitting import split
from weft.pipe._workers.stage import Backward, MicroBatch, Skips
from weft.pipe._workers.values import Versions, have_changed, joined, tensors_in, with_versions

#: The versions of what a stage has sent, by what it is for and where it goes.
SentVersions = dict[tuple[Sent, int], Versions]


def run_mini_batch(part: Part, job: Job, given: dict[Key, Any] | None = None) -> Outcome:
    """Runs a worker's tasks of a mini-batch.

    Args:
        part: the worker's stages.
        job: the mini-batch.
        given: if the driver runs this itself, its inputs for its own stages.

    Raises:
        Abandoned: the mini-batch was given up, or the driver is lost.
        RuntimeError: a task failed, or what a neighbour needs could not be sent.
    """
    if part.arrivals.is_over(job.step):
        raise Abandoned("the mini-batch was over before it began here")
    graph = job.graph if isinstance(job.graph, Graph | None) else job.graph.local_value()
    try:
        if graph is not None and job.backward is not None:
            graph.lend(part.stages, job.backward.retain)
        run = run_of(part, job, given or {}, graph)
        with torch.set_grad_enabled(job.criterion is not None or graph is not None):
            run.run_tasks()
        run.wait_for_sent()
        if graph is not None and job.backward is None:
            graph.keep(part.stages)
        part.keep_output(job.step, run.output())
    finally:
        part.arrivals.end(job.step, "the mini-batch is over")
        for stage in part.stages.values():
            stage.forget()
        part.settle()
    return Outcome(run.loss, "", run.done if job.recorded else (), run.first_gradients())


def run_of(part: Part, job: Job, given: dict[Key, Any], graph: Graph | None) -> Run | ScriptedRun:
    """The run of a mini-batch: in C++ where nothing of it needs Python."""
    if graph is None and job.backward is None and runs_in_cpp(part, job):
        return ScriptedRun(part, job, given)
    if isinstance(job.criterion, SavedLoss):
        job = job._replace(criterion=job.criterion.load())
    return Run(part, job, given, graph)


class Run:
    """One mini-batch at one worker, while it runs."""

    def __init__(
        self, part: Part, job: Job, given: dict[Key, Any], graph: Graph | None = None
    ) -> None:
        self.part = part
        self.job = job
        self.loss = torch.zeros((), device="cpu")  # whatever torch's default device is
        self.done: list[Done] = []
        self._graph = graph
        self._outputs: list[Any] = []
        self._input_gradients: dict[
            int, list[Tensor | None]
        ] = {}  # of the first stage, by micro-batch
        self._sent: dict[tuple[int, int], SentVersions] = {}  # by stage and micro-batch
        self._sent_last: dict[int, int] = {}  # the last micro-batch that was sent, by stage
        self._step: steps.Step
        self._last = len(part.places) - 1
        self._tasks = part.tasks(job.order)
        self._split_stages = {task.stage for task in self._tasks if task.kind == WEIGHTS}
        self._number = _C.pipe.next_mini_batch_number()
        self._own = given  # values of this worker's stages for each other, and from the driver
        self._targets: list[Any] = []
        self._deliveries = _C.pipe.Deliveries(part.pipe)
        if job.given is not None and job.backward is not None:
            found = graph.split(unpack(job.given), part.stages[self._last].device)
            for number, gradients in enumerate(found):
                self._send(Sent.gradients, self._last, number, gradients)
        elif job.given is not None:
            self._targets = split(unpack(job.given), len(job.weights))

    def run_tasks(self) -> None:
        """Runs all tasks, adds up the gradients of replicas, and takes the outputs of a forward alone."""
        backward = self.job.backward
        trains = self.job.criterion is not None or (backward is not None and backward.parameters)
        replicas = self.part.replicas if trains else []
        for one in replicas:
            one.begin()
            if self._last_task(one) < 0:
                self._send_sums(one)
        for number, task in enumerate(self._tasks):
            self._run_task(task)
            for one in replicas:
                if self._last_task(one) == number:  # other stages' tasks overlap with the sending
                    self._send_sums(one)
        if self._graph is not None and backward is None:  # no backward of this run checks it
            for at in self._sent:
                self._check_sent(*at, keep=True)
        for one in replicas:
            one.add_up([self._sums_of(one, at) for at in range(len(one.workers))])
        alone = self.job.criterion is None and backward is None
        if alone and self.part.places[-1].worker == self.part.name:
            for number in range(len(self.job.recompute)):
                output = self._take(Sent.input, self._last + 1, number)
                self._outputs.append(output.value if isinstance(output, LostSharing) else output)

    def _last_task(self, replicas: Replicas) -> int:
        """The number of the last task of these stages; -1: fewer micro-batches than replicas, so none."""
        own = [at for at, task in enumerate(self._tasks) if task.stage in replicas.stages]
        return max(own, default=-1)

    def _send_sums(self, replicas: Replicas) -> None:
        at = replicas.workers.index(self.part.name)
        for worker in replicas.workers:
            if worker != self.part.name:
                self._deliver(worker, Sent.sums, replicas.stages[0], at, replicas.sums())

    def _sums_of(self, replicas: Replicas, at: int) -> Sums:
        if replicas.workers[at] == self.part.name:
            return replicas.sums()
        return self.part.take((self.job.step, Sent.sums, replicas.stages[0], at))

    def _run_task(self, task: Task) -> None:
        """Runs a task; an error says which one it was."""
        self._step = steps.begin(self.job.step, task.stage, task.micro_batch, task.kind)
        self._step.started = self._step.created
        try:
            if task.kind == FORWARD:
                self._run_forward(task)
            elif task.kind == BACKWARD:
                self._run_backward(task)
            else:
                self._run_weights(task)
        except BaseException as error:
            end_checkpoints(error, error.__traceback__)
            here = self.part.name == self.part.driver
            if isinstance(error, Abandoned) or (here and not isinstance(error, Exception)):
                raise  # Ctrl-C and sys.exit() in the driver's own thread are for the driver's caller
            raise RuntimeError(
                f"stage {task.stage} of the Pipe, on worker '{self.part.name}', failed in the {task.kind} of "
                f"micro-batch {task.micro_batch}: {type(error).__name__}: {text_of(error)}\n"
                f"{traceback.format_exc()}"
            ) from None

    def _run_forward(self, task: Task) -> None:
        stage, number = self.part.stages[task.stage], task.micro_batch
        value = self._take(Sent.input, task.stage, number)
        skips = {at: self._take(Sent.skip, at, number) for at in stage.pops}
        recompute = self.job.recompute
        at = MicroBatch(task.stage, number, len(recompute), self._number)
        watched = contextlib.ExitStack()
        if len(self.part.places[task.stage].workers) > 1:
            watched.enter_context(unchanged_in_replica(stage.layers))
        elif stage.shared:
            watched.enter_context(unchanged_buffers(stage.layers, stage.shared))
        if task.stage == self._last and self.job.criterion is not None:
            target, weight = self._targets[number], self.job.weights[number]
            elsewhere = self.part.name != self.part.driver
            if elsewhere and isinstance(self.job.criterion, nn.Module):
                watched.enter_context(unchanged_loss(self.job.criterion))
            with watched:
                loss = stage.loss(
                    at, value, skips, recompute[number], self.job.criterion, target, weight
                )
            self.loss = self.loss + loss.cpu()
            self._note_done(task)
            return
        with watched:
            output, stashed = stage.forward(at, value, skips, recompute[number])
        self._note_done(task)
        if task.stage in self._sent_last:
            self._check_sent(task.stage, self._sent_last[task.stage], keep=torch.is_grad_enabled())
        if task.stage == self._last:  # its first replica joins the outputs
            self._send(Sent.input, task.stage + 1, number, output)
        else:
            self._send_outputs(task, output, stashed)

    def _send_outputs(self, task: Task, output: Any, stashed: Skips) -> None:
        given = {(Sent.input, task.stage + 1): output}
        given |= {(Sent.skip, at): one for at, one in stashed.items()}
        self._sent[task.stage, task.micro_batch] = {
            key: with_versions(tensors_in(value)) for key, value in given.items()
        }
        self._sent_last[task.stage] = task.micro_batch
        elsewhere = any(self._worker(*key, task.micro_batch) != self.part.name for key in given)
        lost = (
            bool(stashed) and elsewhere and _C.pipe.share_storage(tensors_in(list(given.values())))
        )
        for (what, at), value in given.items():
            self._send(what, at, task.micro_batch, LostSharing(value) if lost else value)

    def _run_backward(self, task: Task) -> None:
        number, gradients = task.micro_batch, None
        self._check_sent(task.stage, number)
        if task.stage < self._last or self.job.backward is not None:
            gradients = self._take(Sent.gradients, task.stage, number)
        stage = self.part.stages[task.stage]
        stashed = stage.stashed_with_gradient(number)
        skips = {at: self._take(Sent.skip_gradient, at, number) for at in stashed}
        if task.stage in self._split_stages:
            found, popped = stage.input_gradients(number, gradients, skips)
        else:
            how = self.job.backward or Backward()
            found, popped = stage.backward(number, gradients, skips, how)
        self._note_done(task)
        for at, one in popped.items():
            self._send(Sent.skip_gradient, at, number, one)
        if task.stage > 0:
            self._send(Sent.gradients, task.stage - 1, number, found)
        else:
            self._input_gradients[number] = found

    def _run_weights(self, task: Task) -> None:
        self.part.stages[task.stage].weights(task.micro_batch)
        self._note_done(task)

    def _take(self, what: Sent, stage: int, number: int) -> Any:
        if (what, stage, number) in self._own:
            self._hand_over(what, stage, number)
            return self._own.pop((what, stage, number))
        self._step.started = 0
        value = self.part.take((self.job.step, what, stage, number))
        self._step.started = time.monotonic_ns()
        return value

    def _note_done(self, task: Task) -> None:
        self._step.ended = time.monotonic_ns()
        self.done.append(Done(task, self._step.started, self._step.ended))

    def _send(self, what: Sent, at: int, number: int, value: Any) -> None:
        worker = self._worker(what, at, number)
        if worker == self.part.name:
            self._own[what, at, number] = value
        else:
            self._deliver(worker, what, at, number, value)

    def _deliver(self, worker: str, what: Sent, at: int, number: int, value: Any) -> None:
        key = (self.job.step, what, at, number)
        forward = what in (Sent.input, Sent.skip)
        self._deliveries.send(worker, key, *portable(pack(value, forward), worker))

    def _worker(self, what: Sent, at: int, number: int) -> str:
        """The worker that a value is for: that of a stage, or of an end of a skip connection."""
        if what == Sent.skip:
            at = self.part.skips[at].end
        elif what == Sent.skip_gradient:
            at = self.part.skips[at].begin
        places = self.part.places
        return places[at].worker_of(number) if at < len(places) else places[-1].worker

    def wait_for_sent(self) -> None:
        """Waits until the neighbours have what this worker sent them."""
        try:
            self._deliveries.wait()
        except RuntimeError as error:
            raise RuntimeError(f"worker '{self.part.name}': {error}") from None

    def _check_sent(self, stage: int, micro_batch: int, keep: bool = False) -> None:
        """Raises if a stage has changed in place what it sent: a receiver may read it before or after.

        Called after the stage's next forward, and before the micro-batch's backward.
        """
        sent = self._sent.get((stage, micro_batch), {})
        if any(map(have_changed, sent.values())):
            raise RuntimeError(
                "the stage changes in place what it has given to another stage: let it give a clone"
            )
        if not keep:
            self._sent.pop((stage, micro_batch), None)

    def _hand_over(self, what: Sent, stage: int, number: int) -> None:
        """Stops watching a value that goes to a stage of this worker: that stage may change it."""
        if what not in (Sent.input, Sent.skip):
            return
        giver = stage - 1 if what == Sent.input else self.part.skips[stage].begin
        self._check_sent(giver, number, keep=True)
        self._sent.get((giver, number), {}).pop((what, stage), None)

    def output(self) -> Any:
        """The whole output of a forward alone, if the last stage is here."""
        if not self._outputs:
            return None
        return joined(self._outputs) if self._graph is None else self._graph.join(self._outputs)

    def first_gradients(self) -> dict[int, list[Tensor | None]]:
        """Gradients of the inputs by micro-batch, if the first stage is here and computed any."""
        if not any(self._input_gradients.values()):
            return {}
        if self.part.name == self.part.driver:
            return self._input_gradients
        return {
            number: [None if one is None else one.cpu() for one in found]
            for number, found in self._input_gradients.items()
        }
