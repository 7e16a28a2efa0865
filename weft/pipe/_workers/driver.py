"""WorkerPipe: what ``weft.Pipe`` is when it is given a schedule. Its stages are on workers."""

from __future__ import annotations

import contextlib
import functools
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

from weft.pipe._inputs import check_chunks
from weft.pipe._pipe import CHECKPOINTS, Pipe
from weft.pipe._timeline.recording import Timeline
from weft.pipe._workers import calls, state
from weft.pipe._workers.checkpoint import Checkpoint
from weft.pipe._workers.elsewhere import LayersElsewhere
from weft.pipe._workers.job import Job, Outcome, StagePlace, loss_elsewhere
from weft.pipe._workers.mini_batch import MiniBatch
from weft.pipe._workers.optimizer import PipeOptimizer
from weft.pipe._workers.output import ForwardGraph, PipeOutput
from weft.pipe._workers.parcels import pack, portable
from weft.pipe._workers.recording import WorkerRecording
from weft.pipe._workers.remote_parts import RemoteParts
from weft.pipe._workers.replicas import ReplicatedGradients
from weft.pipe._workers.schedule import BACKWARD, FORWARD, SCHEDULES, Plan, plan, plan_alone
from weft.pipe._workers.splitting import refuse_gradients, rows_of, split, wanting_gradients
from weft.pipe._workers.stage import Backward
from weft.pipe._workers.stages import divide, skip_routes
from weft.pipe._workers.values import placed_like


class WorkerPipe(LayersElsewhere):
    """A Pipe whose stages are on workers: ``weft.Pipe(module, chunks, schedule="1f1b")``.

    The driver, which makes it, tells the workers what to run; activations and gradients go from
    worker to worker. It may run stages itself. One thread at a time.
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
        if checkpoint not in CHECKPOINTS:
            raise ValueError(
                f"checkpoint is not one of 'always', 'except_last', or 'never': '{checkpoint}'"
            )
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule is not one of {', '.join(SCHEDULES)}: {schedule!r}")
        if schedule == "zb" and checkpoint != "never":
            raise ValueError(
                "the schedule 'zb' keeps activations until the gradients of parameters are computed: "
                "give it checkpoint='never'"
            )
        #: The number of micro-batches, the checkpoint mode and the schedule.
        self.chunks = check_chunks(chunks)
        self.checkpoint = checkpoint
        self.schedule = schedule
        self._identity = uuid.uuid4().hex
        deferred = self.chunks if deferred_batch_norm else 0
        self._parts = RemoteParts(self._identity, divide(module), deferred)
        #: The workers and the devices of each stage, or of its replicas.
        self.places = self._parts.places
        self._workers = self._parts.workers
        self._plan(self.chunks)  # raises what the schedule cannot do
        self._step = 0
        self._running = threading.Lock()
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
            reduction: ``"mean"`` weighs each micro-batch by its rows, ``"sum"`` adds them up; by
                default what ``loss.reduction`` says, else ``"mean"``. A loss that ignores or weighs
                rows has another mean: give it ``"sum"``, and divide.

        Returns:
            The loss of the mini-batch, on the CPU, without a graph.

        Raises:
            RuntimeError: a stage failed, with its number, worker and traceback, or a worker was lost.
                The mini-batch is over on all workers; gradients that were computed stay. With replicas
                of a stage these differ: ``zero_grad()`` comes before the next step.
            ValueError: the arguments cannot be used, or autocast or ``no_grad`` is active: the workers do
                not see it.
        """
        _check_surroundings()
        if self.places[-1].workers != (rpc.get_worker_info().name,):
            _check_loss(loss)
        refuse_gradients(
            targets, "gradients of targets do not come back from the last stage's worker"
        )
        self._gradients.check()
        parts = split(inputs, self.chunks)
        wanted = len(split(targets, len(parts)))
        if wanted != len(parts):
            raise ValueError(
                f"the targets give {wanted} micro-batches, the inputs {len(parts)}: their first "
                "dimensions differ"
            )
        reduction = reduction or getattr(loss, "reduction", "mean")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction is not one of 'mean', 'sum': {reduction!r}")
        rows = [rows_of(one) for one in parts]
        weights = [row / sum(rows) if reduction == "mean" else 1.0 for row in rows]
        job = Job(recompute=self._recompute(len(parts)), criterion=loss, weights=weights)
        outcomes = self._run(self._plan(len(parts)), job, parts, targets)
        _backward_of_inputs(parts, outcomes)
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
        _check_surroundings(backward=False)
        with_graph = self.training and torch.is_grad_enabled()
        if torch.is_grad_enabled() and not with_graph:
            refuse_gradients(
                inputs, "the output of a Pipe with a schedule has no graph after eval()"
            )
        parts = split(inputs, self.chunks)
        order = self._plan(len(parts), FORWARD)
        job = Job(recompute=self._recompute(len(parts)))
        last = self.places[-1].worker
        if not with_graph:
            self._run(order, job, parts)
            return rpc.remote(last, calls.take_output, args=(self._identity, self._step))
        graphs = self._open_graphs()
        self._run(order, job, parts, graphs=graphs)
        run = functools.partial(self._backward, graphs, len(parts))
        graph = ForwardGraph(self._workers, wanting_gradients(parts), run)
        if last == rpc.get_worker_info().name:
            value, wanted = calls.take_output(self._identity, self._step)
            return rpc.RRef(graph.attach(value, wanted))
        rref = rpc.remote(last, calls.take_output, args=(self._identity, self._step))
        return PipeOutput(rref, graph)

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
        """Runs the backward of a forward; gradients of the inputs that want one."""
        self._gradients.check(how.context)
        order = self._plan(chunks, BACKWARD)
        job = Job(recompute=[False] * chunks, backward=how)
        return _input_gradients(self._run(order, job, [], list(gradients), graphs))

    def _run(
        self,
        order: Plan,
        job: Job,
        parts: list[Any],
        given: Any = None,
        graphs: dict[str, Any] | None = None,
    ) -> list[Outcome]:
        """Runs a mini-batch.

        Args:
            order: of the tasks.
            job: what is the same for all workers.
            parts: the inputs of the micro-batches.
            given: what the last stage's worker gets.
            graphs: each worker's.
        """
        recording = self._recording
        with self._running:
            self._step += 1
            job = job._replace(step=self._step, recorded=recording is not None)
            last = self.places[-1].workers
            elsewhere = loss_elsewhere if job.criterion is not None else None
            jobs = {
                worker: job._replace(
                    tasks=order[worker],
                    graph=graphs and graphs[worker],
                    criterion=job.criterion if worker in last else elsewhere,
                )
                for worker in self._workers
            }
            if (
                given is not None
            ):  # targets, or gradients of the output, which is at its first replica
                for worker in last if job.criterion is not None else last[:1]:
                    given_there = portable(pack(given), worker)
                    jobs[worker] = jobs[worker]._replace(given=given_there)
            try:
                outcomes = MiniBatch(self._identity, self.places, jobs).run(parts)
            except BaseException:
                self._gradients.broken |= job.criterion is not None or job.backward is not None
                raise
            if recording is not None:
                recording.add(order, {worker: one.tasks for worker, one in outcomes.items()})
            return [outcomes[worker] for worker in self._workers]

    def _plan(self, chunks: int, alone: str | None = None) -> Plan:
        workers = [place.workers for place in self.places]
        if alone is not None:
            return plan_alone(alone, workers, chunks)
        return plan(self.schedule, workers, chunks)

    def _recompute(self, chunks: int) -> list[bool]:
        if self.checkpoint == "never" or not self.training:
            return [False] * chunks
        last = self.checkpoint == "always"
        return [True] * (chunks - 1) + [last]

    # The workers

    def _connect_skips(self) -> None:
        """Asks the workers: only they have the layers of remote modules."""
        try:
            found = self.at_workers(calls.declared_skips).values()
            declared = sorted((one for each in found for one in each), key=lambda one: one[0])
            routes = skip_routes(declared)
            if routes:
                self._parts.set_up("skips", calls.connect, routes)
        except BaseException:
            self.close()
            raise

    def at_workers(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """What a function of the workers gives at each of them; all run at the same time."""
        return self._parts.call(function, *args)

    def optimizer(self, cls: Callable[..., torch.optim.Optimizer], **options: Any) -> PipeOptimizer:
        """An optimizer at each worker, for the parameters of its stages.

        Args:
            cls: its class, such as ``torch.optim.AdamW``.
            options: its arguments, without the parameters.
        """
        self._parts.set_up("optimizer", state.make_optimizer, cls, options)
        return PipeOptimizer(self._parts, self._gradients)

    def remote_parameters(self) -> list[rpc.RRef]:
        """RRefs of the parameters of all stages, for ``torch.distributed.optim.DistributedOptimizer``."""
        return [one for found in self.at_workers(state.parameter_rrefs).values() for one in found]

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_`` over the gradients of all stages.

        Returns:
            The norm before, on the CPU.
        """
        self._gradients.check()
        found = self.at_workers(state.gradient_norms, norm_type).values()
        norms = [norm for each in found for norm in each]
        total = torch.linalg.vector_norm(torch.stack(norms or [torch.zeros(())]), norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)  # NaN stays: as torch's
        self.at_workers(state.scale_gradients, factor.item())
        return total

    @contextlib.contextmanager
    def record(self) -> Iterator[Timeline]:
        """Records when each task runs, at all workers: as :meth:`weft.Pipe.record`.

        The times are those of the workers' processors, put on this process's clock. Tasks of an
        accelerator end when they are enqueued.
        """
        if self._recording is not None:
            raise RuntimeError("this Pipe is being recorded already")
        recording = WorkerRecording(self.schedule, self.places)
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
            with contextlib.suppress(RuntimeError):
                self.at_workers(calls.close)

    # Checkpoints

    def save_checkpoint(self, path: str | Path, background: bool = False) -> Checkpoint:
        """Writes the state of layers, optimizers and schedulers, each worker its own shard.

        ::

            checkpoint = pipe.save_checkpoint("model.ckpt", background=True)
            pipe.step(inputs, targets, loss=loss_fn)   # meanwhile
            checkpoint.wait()

        Args:
            path: a folder that all workers see. It is replaced as a whole, when all have written.
            background: whether this returns as soon as each worker has copied its state, which takes
                as much memory again until it is written. One is written at a time.

        Raises:
            RuntimeError: a worker could not write; a checkpoint that was there stays. With
                ``background`` it is raised by ``wait()``, or else by the next of these calls.
        """
        self._wait_for_checkpoint()
        if background:
            self.at_workers(state.take_snapshot)
        checkpoint = Checkpoint(Path(path), self._identity, self._workers, background)
        if background:
            self._checkpoint = checkpoint
        else:
            checkpoint.wait()
        return checkpoint

    def _wait_for_checkpoint(self) -> None:
        checkpoint, self._checkpoint = self._checkpoint, None
        if checkpoint is not None:
            checkpoint.wait()

    def load_checkpoint(self, path: str | Path) -> None:
        """Takes up what :meth:`save_checkpoint` wrote, also with other stages or workers.

        A worker that was restarted gets its stages, optimizer and scheduler again. Make the optimizer
        first, so that its state has a place. Gradients are cleared.

        Raises:
            RuntimeError: a worker is lost and not back yet: try again.
            ValueError: a remote module of a restarted worker was given as an RRef.
        """
        self._wait_for_checkpoint()
        self._parts.build_missing()
        self.at_workers(state.read_shards, str(path))
        self.zero_grad()

    # nn.Module's own methods, acting at the workers

    def state_dict(
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """The state of all layers, on the CPU, under the plain Sequential's names."""
        whole: dict[str, Any] = {} if destination is None else destination
        for found in self.at_workers(state.layers_state).values():
            whole.update({prefix + key: value for key, value in found.items()})
        return whole

    plain_state_dict = state_dict

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """For ``load_state_dict``, also that of a module around."""
        if local_metadata.get("assign_to_params_buffers", False):
            raise NotImplementedError("a Pipe with a schedule copies a state: no assign=True")
        own = {
            key.removeprefix(prefix): value
            for key, value in state_dict.items()
            if key.startswith(prefix)
        }
        used: set[str] = set()
        for lacking, found in self.at_workers(state.load_layers, own).values():
            missing_keys += [prefix + key for key in lacking]
            used.update(found)
        if strict:
            unexpected_keys += [prefix + key for key in own if key not in used]

    def train(self, mode: bool = True) -> WorkerPipe:
        self._parts.set_up("mode", state.change, "train", mode)
        self.training = mode
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.at_workers(state.change, "zero_grad", set_to_none)
        self._gradients.broken = False

    def __len__(self) -> int:
        """The number of stages."""
        return len(self.places)


Pipe._over_workers = WorkerPipe


def _input_gradients(outcomes: list[Outcome]) -> list[Tensor | None]:
    """Of the tensors that want one in all micro-batches; none at all where there is none."""
    found = {number: part for outcome in outcomes for number, part in outcome.gradients.items()}
    return [one for number in sorted(found) for one in found[number]]


def _backward_of_inputs(parts: list[Any], outcomes: list[Outcome]) -> None:
    """Goes on in this process's graph with the gradients of the inputs."""
    found = _input_gradients(outcomes)
    inputs = wanting_gradients(parts) if found else []
    pairs = zip(inputs, placed_like(found, inputs), strict=True)
    there = [(tensor, one) for tensor, one in pairs if one is not None]
    if there:
        torch.autograd.backward([tensor for tensor, _ in there], [one for _, one in there])


def _check_loss(loss: Callable[[Any, Any], Tensor]) -> None:
    trained = isinstance(loss, nn.Module) and [
        name for name, one in loss.named_parameters() if one.requires_grad
    ]
    if trained:
        raise ValueError(
            f"the loss has parameters ({', '.join(trained)}), and each step gives its worker a new copy, "
            "whose gradients are lost: let the last layer have them, or switch off requires_grad"
        )


def _check_surroundings(backward: bool = True) -> None:
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        raise ValueError(
            "autocast is active here, and the stages' workers do not see it: use it inside the layers"
        )
    if backward and not torch.is_grad_enabled():
        raise ValueError(
            "gradients are off here (no_grad or inference_mode), and step computes them"
        )


__all__ = ["StagePlace", "WorkerPipe"]
