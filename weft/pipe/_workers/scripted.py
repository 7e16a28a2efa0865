"""One mini-batch at a worker whose stages are all TorchScript: C++ runs its tasks, without the GIL."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.module import _has_any_global_hook

from weft import _C
from weft._observe import pipeline_tasks
from weft.pipe._partition import has_hooks
from weft.pipe._workers.job import Abandoned, Done, Job, Key, Sent, Work
from weft.pipe._workers.parcels import pack, unpack
from weft.pipe._workers.part import Part
from weft.pipe._workers.schedule import Task
from weft.pipe._workers.splitting import split
from weft.pipe._workers.stage import Stage


class SavedLoss(NamedTuple):
    """A scripted loss on its way to another worker, which compiles it once."""

    saved: bytes  # as torch.jit.save writes

    @classmethod
    def of(cls, loss: torch.jit.ScriptModule) -> SavedLoss:
        return cls(_C.pipe.save_loss(loss._c))

    def load(self) -> torch.jit.ScriptModule:
        """A copy, with the state that was saved."""
        return torch.jit._recursive.wrap_cpp_module(_C.pipe.load_loss(self.saved))


def _loss_in_cpp(criterion: Any) -> Any:
    """The loss for C++. To wrap it for Python would take longer than a small mini-batch."""
    if isinstance(criterion, SavedLoss):
        return _C.pipe.load_loss(criterion.saved)
    return criterion._c


def runs_in_cpp(part: Part, job: Job) -> bool:
    """Whether nothing of this worker's part of the mini-batch needs Python."""
    if job.work not in (Work.STEP, Work.FORWARD) or part.replicas:
        return False
    if _has_any_global_hook() or torch._C._len_torch_function_stack() > 0:
        return False
    if (
        _has_loss(part, job)
        and not isinstance(job.criterion, SavedLoss)
        and not is_scripted(job.criterion)
    ):
        return False
    return all(_stage_runs_in_cpp(stage) for stage in part.stages.values())


def _has_loss(part: Part, job: Job) -> bool:
    """Whether this worker computes the loss."""
    return job.work is Work.STEP and len(part.places) - 1 in part.stages


def _stage_runs_in_cpp(stage: Stage) -> bool:
    return (
        stage.device.type == "cpu"
        and not stage.pops
        and not stage.stashes
        and not stage.shared
        and all(map(is_scripted, stage.layers))
    )


def is_scripted(module: Any) -> bool:
    """Whether TorchScript is all of it."""
    return isinstance(module, torch.jit.ScriptModule) and not has_hooks(module)


class ScriptedRun:
    """One mini-batch at one worker, while it runs: as :class:`weft.pipe._workers.run.Run`."""

    def __init__(self, part: Part, job: Job, given: dict[Key, Any]) -> None:
        targets: list[Any] = []
        if job.given is not None:
            targets = split(unpack(job.given), len(job.weights))
        self._part = part
        self._run = _C.pipe.ScriptWorkerRun(
            (part.pipe, part.name, part.driver),
            [list(place.workers) for place in part.places],
            {number: [one._c for one in stage.layers] for number, stage in part.stages.items()},
            job.mini_batch,
            part.tasks(job.plan_spec),
            job.recompute,
            job.work is Work.STEP,
            _loss_in_cpp(job.criterion) if _has_loss(part, job) else None,
            targets,
            list(job.weights),
            (pack, unpack),
        )
        if given:
            inputs = {
                micro_batch: value
                for (what, _, micro_batch), value in given.items()
                if what == Sent.input
            }
            try:
                self._run.give(inputs, part.stages[0].layers[0]._c)
            except RuntimeError as error:
                raise RuntimeError(
                    f"stage 0 of the Pipe, on worker '{part.name}', cannot take its inputs: {error}"
                ) from None
        pipeline_tasks.follow(self._run.records)

    def run_tasks(self) -> None:
        """Runs all tasks, and waits until the neighbours have what this worker sent them."""
        self._run.run(Abandoned)

    @property
    def loss(self) -> Tensor:
        return self._run.loss

    @property
    def done(self) -> list[Done]:
        return [
            Done(Task(one.kind, one.stage, one.micro_batch), one.started, one.ended)
            for one in self._run.records
        ]

    def output(self) -> Any:
        """The whole output of a forward alone, if the last stage is here."""
        return self._run.output

    def first_gradients(self) -> dict[int, list[Tensor | None]]:
        """As :meth:`weft.pipe._workers.run.Run.first_gradients`."""
        found = self._run.first_gradients
        return found if any(found.values()) else {}
