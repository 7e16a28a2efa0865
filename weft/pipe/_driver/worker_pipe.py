"""WorkerPipe: what ``weft.Pipe`` is when it is given a schedule. Its stages are on workers."""

from __future__ import annotations

import contextlib
import functools
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

from weft.pipe._driver.checkpoint import Checkpoint
from weft.pipe._driver.checks import check_loss, check_surroundings
from weft.pipe._driver.gradients import ReplicatedGradients, backward_of_inputs, input_gradients
from weft.pipe._driver.mini_batch import MiniBatch
from weft.pipe._driver.output import ForwardGraph, PipeOutput
from weft.pipe._driver.reductions import weights_of
from weft.pipe._driver.remote_parts import RemoteParts
from weft.pipe._driver.stages import divide, inner_remote_module, skip_routes
from weft.pipe._driver.state_elsewhere import StateElsewhere
from weft.pipe._driver.worker_timeline import WorkerRecording
from weft.pipe._inputs import check_checkpoint, check_chunks, check_rows
from weft.pipe._pipe import Pipe
from weft.pipe._timeline.recording import Timeline
from weft.pipe._workers import calls
from weft.pipe._workers.job import Job, Outcome, Work
from weft.pipe._workers.micro_batch import Backward
from weft.pipe._workers.parcels import for_worker, pack
from weft.pipe._workers.schedule import SCHEDULES, Plan, PlanSpec, plan_of
from weft.pipe._workers.scripted import SavedLoss, is_scripted
from weft.pipe._workers.splitting import refuse_gradients, rows_of, split, wanting_gradients


class WorkerPipe(StateElsewhere):
    """A Pipe whose stages are on workers: ``weft.Pipe(module, chunks, schedule="1f1b")``.

    The driver, which makes it, tells the workers what to run; activations and gradients go from
    worker to worker. It may run stages itself.

    Mini-batches of several threads come one after the other; the rest from one thread at a time.
    """

    def __init__(
        self,
        module: nn.Sequential,
        chunks: int = 1,
        checkpoint: str = "except_last",
        deferred_batch_norm: bool = False,
        *,
        schedule: str | None = None,
    ) -> None:
        nn.Module.__init__(self)
        if not rpc.api._is_current_rpc_agent_set():
            raise RuntimeError("Call init_rpc before making a Pipe: its stages are on workers")
        self.checkpoint = check_checkpoint(checkpoint)
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is not one of {', '.join(SCHEDULES)}: {schedule!r}")
        if schedule == "zb" and checkpoint != "never":
            raise ValueError(
                "the schedule 'zb' keeps activations until the gradients of parameters are computed: "
                "give it checkpoint='never'"
            )
        #: The number of micro-batches, the checkpoint mode and the schedule.
        self.chunks = check_chunks(chunks)
        self.schedule = schedule
        self._identity = uuid.uuid4().hex
        deferred = self.chunks if deferred_batch_norm else 0
        self._inner_remote = inner_remote_module(module)
        self._parts = RemoteParts(self._identity, divide(module), deferred)
        #: The workers and the devices of each stage, or of its replicas.
        self.places = self._parts.places
        self._workers = self._parts.workers
        self._plan(self._plan_spec(Work.STEP, self.chunks))  # raises what the schedule cannot do
        self._mini_batches = 0
        self._running = threading.Lock()
        self._running_thread: int | None = None  # that holds the lock
        self._recording: WorkerRecording | None = None
        self._checkpoint: Checkpoint | None = None
        self._gradients = ReplicatedGradients(any(len(place.workers) > 1 for place in self.places))
        self._parts.build()
        self._connect_skips()

    # A mini-batch

    def step(
        self,
        inputs: Any,
        targets: Any,
        loss: Callable[[Any, Any], Tensor],
        reduction: str | None = None,
    ) -> Tensor:
        """Runs forward, loss and backward of a mini-batch; gradients add up in ``.grad`` at the workers.

        ::

            loss = pipe.step(images, labels, loss=nn.CrossEntropyLoss())

        Args:
            inputs: a tensor, or a tuple of arguments for the first stage, split along dimension 0 as
                :meth:`forward` does. Gradients of those that want one are added up here.
            targets: split in the same way; the second argument of ``loss``.
            loss: takes the output of a micro-batch and its targets at the last stage's worker; it is
                pickled for another one, and then has no parameters to train.
            reduction: ``"mean"`` and ``"batchmean"`` weigh each micro-batch by its rows, those of the
                tensor that has the most, or by what torch's cross entropy divides by where it ignores
                or weighs classes; ``"sum"`` adds them up. By default what ``loss.reduction`` or the
                keyword of a ``functools.partial`` says, else ``"mean"``. A loss of your own that
                ignores or weighs rows has another mean: give it ``"sum"``, and divide.

        Returns:
            The loss of the mini-batch, on the CPU, without a graph.

        Raises:
            RuntimeError: a stage failed, with its number, worker and traceback, or a worker was lost.
                The mini-batch is over on all workers; gradients that were computed stay. With replicas
                of a stage these differ: ``zero_grad()`` comes before the next step.
            TypeError: the inputs or the targets have no tensor.
            ValueError: the arguments cannot be used, or autocast, ``no_grad``, forward-mode AD, a
                torch function mode or a transform of ``torch.func`` is active: the workers do not see
                it.
        """
        check_surroundings((inputs, targets))
        self._check_inner_remote()
        if self.places[-1].workers != (rpc.get_worker_info().name,):
            check_loss(loss)
        self._parts.check_loss(loss)
        refuse_gradients(
            targets, "gradients of targets do not come back from the last stage's worker"
        )
        self._gradients.check()
        micro_batches = split(inputs, self.chunks)
        wanted = split(targets, len(micro_batches), "targets")
        if len(wanted) != len(micro_batches):
            raise ValueError(
                f"the targets give {len(wanted)} micro-batches, the inputs {len(micro_batches)}: their "
                "first dimensions differ"
            )
        rows = [rows_of(inputs, micro_batches), rows_of(targets, wanted)]
        check_rows(rows)
        weights = weights_of(max(rows, key=sum), loss, reduction, wanted)
        job = self._job(Work.STEP, len(micro_batches))._replace(criterion=loss, weights=weights)
        _, outcomes = self._run_mini_batch(job, micro_batches, targets)
        backward_of_inputs(micro_batches, outcomes)
        return torch.stack([outcome.loss for outcome in outcomes]).sum()

    def forward(self, *inputs: Any) -> rpc.RRef | PipeOutput:
        """Runs a forward; in training, and with gradients enabled, its output has a graph.

        ::

            loss = loss_fn(pipe(images).to_here(), labels)
            loss.backward()

        The backward runs the stages' backwards at the workers, and adds to ``.grad`` there, or to the
        gradients of a ``torch.distributed.autograd.context()``. Until then the workers keep what it
        needs, and drop it when nothing here leads to the output any more. All forwards come before
        all backwards, whatever the schedule: :meth:`step` holds less.

        Returns:
            An RRef owned by the last stage's worker: tensors joined along dimension 0, other values as
            a list of one per micro-batch.

        Raises:
            As :meth:`step`.
        """
        check_surroundings(inputs, backward=False)
        with_graph = self.training and torch.is_grad_enabled()
        if torch.is_grad_enabled() and not with_graph:
            refuse_gradients(
                inputs, "the output of a Pipe with a schedule has no graph after eval()"
            )
        if with_graph:
            self._check_inner_remote()
            self._parts.check_graph()
        micro_batches = split(inputs, self.chunks)
        job = self._job(Work.FORWARD, len(micro_batches))
        last = self.places[-1].worker
        if not with_graph:
            mini_batch, _ = self._run_mini_batch(job, micro_batches)
            return self._parts.take_output(last, mini_batch)
        graphs = self._open_graphs()
        job = job._replace(work=Work.FORWARD_WITH_GRAPH)
        mini_batch, _ = self._run_mini_batch(job, micro_batches, graphs=graphs)
        run = functools.partial(self._backward, graphs, len(micro_batches))
        graph = ForwardGraph(self._workers, wanting_gradients(micro_batches), run)
        if last == rpc.get_worker_info().name:
            value, wanted = calls.take_output(self._identity, mini_batch)
            return rpc.RRef(graph.attach(value, wanted))
        return PipeOutput(self._parts.take_output(last, mini_batch), graph)

    def _check_inner_remote(self) -> None:
        """A stage's graph ends at its border, so what a remote call inside of it gives has no gradient."""
        if self._inner_remote:
            raise ValueError(
                f"the remote module '{self._inner_remote}' is inside a stage, and gradients do not go "
                "through it there: let it be a child of the Sequential itself, or compute no gradients"
            )

    def _open_graphs(self) -> dict[str, Any]:
        here = rpc.get_worker_info().name
        return {
            worker: calls.open_graph(self._identity)
            if worker == here
            else rpc.remote(worker, calls.open_graph, args=(self._identity,), timeout=0)
            for worker in self._workers
        }

    def _backward(
        self,
        graphs: dict[str, Any],
        chunks: int,
        gradients: Sequence[Tensor | None],
        how: Backward,
    ) -> list[Tensor | None]:
        """Runs the backward of a forward. Returns the gradients of the inputs that want one."""
        self._gradients.check(how.context)
        job = self._job(Work.BACKWARD, chunks)._replace(backward=how)
        _, outcomes = self._run_mini_batch(job, [], list(gradients), graphs)
        return input_gradients(outcomes)

    def _run_mini_batch(
        self,
        job: Job,
        micro_batches: list[Any],
        given: Any = None,
        graphs: dict[str, Any] | None = None,
    ) -> tuple[int, list[Outcome]]:
        """Runs a mini-batch. Returns its number, and what came of it at each worker.

        Args:
            job: what is the same for all workers.
            micro_batches: the inputs of the micro-batches.
            given: for the last stage's worker: targets, or gradients of the output.
            graphs: each worker's graph, which keeps the forward for later backwards.
        """
        recording = self._recording
        with self._alone():
            self._mini_batches += 1
            job = job._replace(mini_batch=self._mini_batches, recorded=recording is not None)
            jobs = self._jobs(job, given, graphs)
            try:
                outcomes = MiniBatch(self._identity, self._parts, jobs).run(micro_batches)
            except BaseException:
                self._gradients.broken |= job.work in (Work.STEP, Work.BACKWARD)
                raise
            if recording is not None:
                done = {worker: one.tasks for worker, one in outcomes.items()}
                recording.add(self._plan(job.plan_spec), done)
            return job.mini_batch, [outcomes[worker] for worker in self._workers]

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other mini-batches of this Pipe off; one that this thread runs would never end."""
        here = threading.get_ident()
        if self._running_thread == here:
            raise RuntimeError(
                "a mini-batch of this Pipe runs on this thread, and another one cannot run inside of it: "
                "a layer, a loss or a hook of its stages here calls the Pipe, or runs a backward through "
                "its output. Call it outside of its own mini-batches"
            )
        with self._running:
            self._running_thread = here
            try:
                yield
            finally:
                self._running_thread = None

    def _jobs(self, job: Job, given: Any, graphs: dict[str, Any] | None) -> dict[str, Job]:
        """The mini-batch as each worker is told of it."""
        criteria = self._criteria(job.criterion)
        jobs = {
            worker: job._replace(graph=graphs and graphs[worker], criterion=criteria.get(worker))
            for worker in self._workers
        }
        if given is None:
            return jobs
        # Targets go to all replicas of the last stage; gradients of the output to the first, which has it.
        last = self.places[-1].workers
        for worker in last if job.work is Work.STEP else last[:1]:
            jobs[worker] = jobs[worker]._replace(given=for_worker(pack(given), worker))
        return jobs

    def _criteria(self, loss: Callable[[Any, Any], Tensor] | None) -> dict[str, Any]:
        """The loss for each worker that computes it. A scripted one is saved once, for the others."""
        if loss is None:
            return {}
        here, last = rpc.get_worker_info().name, self.places[-1].workers
        sent = SavedLoss.of(loss) if is_scripted(loss) and last != (here,) else loss
        return {worker: loss if worker == here else sent for worker in last}

    def _job(self, work: Work, chunks: int) -> Job:
        self._parts.check_open()
        spec = self._plan_spec(work, chunks)
        self._plan(spec)  # raises what the schedule cannot do with so few micro-batches
        return Job(work, spec, self._recompute(chunks))

    def _plan_spec(self, work: Work, chunks: int) -> PlanSpec:
        return PlanSpec(self.schedule, chunks, work.only)

    def _plan(self, spec: PlanSpec) -> Plan:
        return plan_of(spec, tuple(place.workers for place in self.places))

    def _recompute(self, chunks: int) -> list[bool]:
        if self.checkpoint == "never" or not self.training:
            return [False] * chunks
        last = self.checkpoint == "always"
        return [True] * (chunks - 1) + [last]

    # The workers

    def _connect_skips(self) -> None:
        """Tells the workers of the skip connections.

        It asks them which layers stash and pop, because only they have the layers of remote modules.
        """
        try:
            found = self.at_workers(calls.declared_skips).values()
            declared = sorted((one for each in found for one in each), key=lambda one: one[0])
            routes = skip_routes(declared)
            if routes:
                self._parts.set_up("skips", calls.connect, routes)
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def record(self) -> Iterator[Timeline]:
        """Records when each task runs, at all workers: as :meth:`weft.Pipe.record`.

        The times are those of the workers' processors, put on this process's clock. Tasks of an
        accelerator end when they are enqueued.
        """
        if self._recording is not None:
            raise RuntimeError("this Pipe is being recorded already")
        recording = WorkerRecording(self.schedule, self.places, self._parts.clock_offset)
        self._recording = recording
        try:
            yield recording.timeline
        finally:
            self._recording = None
            recording.close()

    def close(self) -> None:
        """Lets the workers drop their stages. The Pipe cannot be used after it.

        Raises:
            RuntimeError: a checkpoint that was still being written could not be.
        """
        try:
            self._wait_for_checkpoint()
        finally:
            self._parts.close()

    def __len__(self) -> int:
        """The number of stages."""
        return len(self.places)


Pipe._over_workers = WorkerPipe
for _name in (
    *("step", "optimizer", "remote_parameters", "clip_grad_norm_"),
    *("save_checkpoint", "load_checkpoint", "close"),
):  # so that help(weft.Pipe.step) shows it
    getattr(Pipe, _name).__doc__ = getattr(WorkerPipe, _name).__doc__
