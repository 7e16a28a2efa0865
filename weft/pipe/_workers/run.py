"""One mini-batch at one worker: its tasks, each of which waits for its input."""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import Any

import torch
from torch import Tensor, nn

from weft import _C
from weft._observe import pipeline_tasks
from weft._torch.checkpoints import end_checkpoints
from weft.pipe._workers.graph import Graph
from weft.pipe._workers.job import Abandoned, Done, Job, Key, Outcome, Sent, Work, text_of
from weft.pipe._workers.micro_batch import MicroBatch, Skips
from weft.pipe._workers.parcels import LostSharing, for_worker, pack, unpack
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
from weft.pipe._workers.sent_values import SentValues
from weft.pipe._workers.splitting import split
from weft.pipe._workers.values import joined, tensors_in


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
    if part.arrivals.is_over(job.mini_batch):
        raise Abandoned(f"worker '{part.name}': the mini-batch was over before it began there")
    graph = job.graph if isinstance(job.graph, Graph | None) else job.graph.local_value()
    try:
        if job.work is Work.BACKWARD:
            graph.lend(part.stages, job.backward.retain)
        run = run_of(part, job, given or {}, graph)
        with torch.set_grad_enabled(job.work is not Work.FORWARD):
            run.run_tasks()
        if job.work is Work.FORWARD_WITH_GRAPH:
            graph.keep(part.stages)
        part.keep_output(job.mini_batch, run.output())
    finally:
        part.arrivals.end(job.mini_batch, "the mini-batch is over")
        for stage in part.stages.values():
            stage.forget()
        part.settle()
    return Outcome(run.loss, "", run.done if job.recorded else (), run.first_gradients())


def run_of(part: Part, job: Job, given: dict[Key, Any], graph: Graph | None) -> Run | ScriptedRun:
    """The run of a mini-batch: in C++ where nothing of it needs Python."""
    if runs_in_cpp(part, job):
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
        #: Of the first stage, by micro-batch.
        self._input_gradients: dict[int, list[Tensor | None]] = {}
        self._sent = SentValues()
        self._record: pipeline_tasks.TaskRecord  # of the task that runs
        self._last = len(part.places) - 1
        self._tasks = part.tasks(job.plan_spec)
        self._split_stages = {task.stage for task in self._tasks if task.kind == WEIGHTS}
        self._run_number = _C.pipe.next_mini_batch_number()
        self._own = given  # values of this worker's stages for each other, and from the driver
        self._targets: list[Any] = []
        self._deliveries = _C.pipe.Deliveries(part.pipe)
        if job.given is not None and job.work is Work.BACKWARD:
            found = graph.split(unpack(job.given), part.stages[self._last].device)
            for number, gradients in enumerate(found):
                self._send(Sent.gradients, self._last, number, gradients)
        elif job.given is not None:
            self._targets = split(unpack(job.given), len(job.weights))

    def run_tasks(self) -> None:
        """Runs all tasks, adds up the gradients of replicas, and takes the outputs of a forward alone.

        Then waits until the neighbours have what this worker sent them.
        """
        work = self.job.work
        trains = work is Work.STEP or (work is Work.BACKWARD and self.job.backward.parameters)
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
        if work is Work.FORWARD_WITH_GRAPH:  # no backward of this run checks it
            self._sent.check_all()
        for one in replicas:
            one.add_up([self._sums_of(one, replica) for replica in range(len(one.workers))])
        forward_alone = work in (Work.FORWARD, Work.FORWARD_WITH_GRAPH)
        if forward_alone and self.part.places[-1].worker == self.part.name:
            for number in range(len(self.job.recompute)):
                output = self._take(Sent.input, self._last + 1, number)
                self._outputs.append(output.value if isinstance(output, LostSharing) else output)
        try:
            self._deliveries.wait()
        except RuntimeError as error:
            raise RuntimeError(f"worker '{self.part.name}': {error}") from None

    def _last_task(self, replicas: Replicas) -> int:
        """The number of the last task of these stages; -1: fewer micro-batches than replicas, so none."""
        own = [number for number, task in enumerate(self._tasks) if task.stage in replicas.stages]
        return max(own, default=-1)

    def _send_sums(self, replicas: Replicas) -> None:
        own = replicas.workers.index(self.part.name)
        for worker in replicas.workers:
            if worker != self.part.name:
                self._deliver(worker, Sent.sums, replicas.stages[0], own, replicas.sums())

    def _sums_of(self, replicas: Replicas, replica: int) -> Sums:
        if replicas.workers[replica] == self.part.name:
            return replicas.sums()
        return self.part.take((self.job.mini_batch, Sent.sums, replicas.stages[0], replica))

    def _run_task(self, task: Task) -> None:
        """Runs a task; an error says which one it was."""
        self._record = pipeline_tasks.begin(
            self.job.mini_batch, task.stage, task.micro_batch, task.kind
        )
        self._record.started = self._record.created
        try:
            with self.part.stages[task.stage].on_device():
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
        skips = {skip: self._take(Sent.skip, skip, number) for skip in stage.pops}
        recompute = self.job.recompute
        micro_batch = MicroBatch(task.stage, number, len(recompute), self._run_number)
        watched = contextlib.ExitStack()
        if len(self.part.places[task.stage].workers) > 1:
            watched.enter_context(unchanged_in_replica(stage.layers))
        elif stage.shared:
            watched.enter_context(unchanged_buffers(stage.layers, stage.shared))
        if task.stage == self._last and self.job.work is Work.STEP:
            target, weight = self._targets[number], self.job.weights[number]
            elsewhere = self.part.name != self.part.driver
            if elsewhere and isinstance(self.job.criterion, nn.Module):
                watched.enter_context(unchanged_loss(self.job.criterion))
            with watched:
                criterion = self.job.criterion
                loss = stage.loss(
                    micro_batch, value, skips, recompute[number], criterion, target, weight
                )
            self.loss = self.loss + loss.cpu()
            self._note_done(task)
            return
        with watched:
            output, stashed = stage.forward(micro_batch, value, skips, recompute[number])
        self._note_done(task)
        self._sent.check_last(task.stage, keep=torch.is_grad_enabled())
        if task.stage == self._last:  # its first replica joins the outputs
            self._send(Sent.input, task.stage + 1, number, output)
        else:
            self._send_outputs(task, output, stashed)

    def _send_outputs(self, task: Task, output: Any, stashed: Skips) -> None:
        given = {(Sent.input, task.stage + 1): output}
        given |= {(Sent.skip, skip): one for skip, one in stashed.items()}
        self._sent.note(task.stage, task.micro_batch, given)
        elsewhere = any(self._worker(*key, task.micro_batch) != self.part.name for key in given)
        lost = (
            bool(stashed) and elsewhere and _C.pipe.share_storage(tensors_in(list(given.values())))
        )
        for (what, to), value in given.items():
            self._send(what, to, task.micro_batch, LostSharing(value) if lost else value)

    def _run_backward(self, task: Task) -> None:
        number, gradients = task.micro_batch, None
        self._sent.check(task.stage, number)
        if task.stage < self._last or self.job.work is Work.BACKWARD:
            gradients = self._take(Sent.gradients, task.stage, number)
        stage = self.part.stages[task.stage]
        stashed = stage.stashed_with_gradient(number)
        skips = {skip: self._take(Sent.skip_gradient, skip, number) for skip in stashed}
        if task.stage in self._split_stages:
            found, popped = stage.input_gradients(number, gradients, skips)
        else:
            found, popped = stage.backward(number, gradients, skips, self.job.backward)
        self._note_done(task)
        for skip, one in popped.items():
            self._send(Sent.skip_gradient, skip, number, one)
        if task.stage > 0:
            self._send(Sent.gradients, task.stage - 1, number, found)
        else:
            self._input_gradients[number] = found

    def _run_weights(self, task: Task) -> None:
        self.part.stages[task.stage].weights(task.micro_batch)
        self._note_done(task)

    def _take(self, what: Sent, to: int, number: int) -> Any:
        """A value for a stage, or of a skip connection; from this worker or another one."""
        if (what, to, number) in self._own:
            if what in (Sent.input, Sent.skip):  # the receiver may change it
                giver = to - 1 if what == Sent.input else self.part.skips[to].begin
                self._sent.release(giver, number, (what, to))
            return self._own.pop((what, to, number))
        self._record.started = 0
        value = self.part.take((self.job.mini_batch, what, to, number))
        self._record.started = time.monotonic_ns()
        return value

    def _note_done(self, task: Task) -> None:
        self._record.ended = time.monotonic_ns()
        self.done.append(Done(task, self._record.started, self._record.ended))

    def _send(self, what: Sent, to: int, number: int, value: Any) -> None:
        worker = self._worker(what, to, number)
        if worker == self.part.name:
            self._own[what, to, number] = value
        else:
            self._deliver(worker, what, to, number, value)

    def _deliver(self, worker: str, what: Sent, to: int, number: int, value: Any) -> None:
        key = (self.job.mini_batch, what, to, number)
        forward = what in (Sent.input, Sent.skip)
        self._deliveries.send(worker, key, *for_worker(pack(value, forward), worker))

    def _worker(self, what: Sent, to: int, number: int) -> str:
        """The worker that a value is for: that of a stage, or of an end of a skip connection."""
        if what == Sent.skip:
            to = self.part.skips[to].end
        elif what == Sent.skip_gradient:
            to = self.part.skips[to].begin
        places = self.part.places
        return places[to].worker_of(number) if to < len(places) else places[-1].worker

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
