"""One mini-batch at the driver: it tells the workers to begin, sends the inputs to the first stage, and
runs the driver's own stages on the calling thread.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import queue
from typing import Any

import torch
import torch.distributed.rpc as rpc

from weft import _C
from weft._torch.checkpoints import without_saved_tensor_hooks
from weft.pipe._driver.remote_parts import RemoteParts
from weft.pipe._workers import calls
from weft.pipe._workers.job import Abandoned, Job, Key, Outcome, Sent, text_of
from weft.pipe._workers.parcels import for_worker, pack
from weft.pipe._workers.part import part_of
from weft.pipe._workers.run import run_mini_batch
from weft.pipe._workers.values import copied, cut, mapped, tensors_in


class MiniBatch:
    """One run of a pipeline; call :meth:`run` once.

    Args:
        pipe: the pipeline's name.
        parts: the stages at the workers.
        jobs: each worker's.
    """

    def __init__(self, pipe: str, parts: RemoteParts, jobs: dict[str, Job]) -> None:
        self._parts = parts
        self._places = parts.places
        self._jobs = jobs
        self._number = next(iter(jobs.values())).mini_batch
        self._name = rpc.get_worker_info().name
        self._own = part_of(pipe) if self._name in jobs else None
        self._given: dict[Key, Any] = {}
        self._deliveries = _C.pipe.Deliveries(pipe)
        self._begun: list[torch.futures.Future[Outcome]] = []
        self._ends: queue.SimpleQueue[tuple[str, Outcome | BaseException]] = queue.SimpleQueue()

    def run(self, inputs: list[Any]) -> dict[str, Outcome]:
        """Runs the mini-batch to its end at all workers. Returns the outcome of each."""
        self._parts.wait_for_left()
        try:
            for worker in self._jobs.keys() - {self._name}:
                self._begin(worker)
            self._feed(inputs)
            outcomes = {self._name: self._run_own()} if self._own is not None else {}
            self._deliveries.wait()
            for _ in self._begun:
                self._take_end(outcomes)
            return outcomes
        except BaseException as error:
            line = text_of(error).partition("\n")[0]
            reason = f"the mini-batch has ended: {type(error).__name__}: {line}"
            self._parts.as_a_whole(functools.partial(self._abandon, reason))
            raise

    def _begin(self, worker: str) -> None:
        job = self._jobs[worker]
        try:
            future = self._parts.begin(worker, calls.run, job)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            if job.criterion is None:
                raise
            raise TypeError(
                f"the loss cannot be sent to worker '{worker}': {error}. Let it be a function or a class "
                "of a module that the worker can import"
            ) from error
        future.add_done_callback(lambda done: self._ended(worker, done))
        self._begun.append(future)

    def _ended(self, worker: str, answer: torch.futures.Future[Outcome]) -> None:
        try:
            self._ends.put((worker, self._outcome_of(worker, answer)))
        except BaseException as error:
            self._ends.put((worker, error))
            if self._own is not None:  # it may wait for what that worker will not send any more
                self._own.abandon(self._number, str(error))

    def _take_end(self, outcomes: dict[str, Outcome]) -> None:
        """Waits until a worker's part has ended, and raises the error if it failed."""
        worker, end = self._ends.get()
        if isinstance(end, BaseException):
            raise end
        outcomes[worker] = end

    def _feed(self, inputs: list[Any]) -> None:
        for number, value in enumerate(inputs):
            value = mapped(cut, value)  # leaves, whose gradients backward_of_inputs() passes on
            first = self._places[0].worker_of(number)
            if first == self._name:
                self._given[Sent.input, 0, number] = self._own_input(value)
            else:
                key = (self._number, Sent.input, 0, number)
                self._deliveries.send(first, key, *for_worker(pack(value, forward=True), first))

    def _own_input(self, value: Any) -> Any:
        """A copy, which the stage may change as one at a worker may: not the caller's batch.

        Views of one memory stay as they are, because a change of one is a change of the others.
        """
        device = self._own.stages[0].device  # to another one the stage copies it
        if _C.pipe.share_storage(tensors_in(value)):
            return value
        return mapped(lambda one: copied(one) if one.device == device else one, value)

    def _run_own(self) -> Outcome:
        """Without the caller's saved-tensor hooks, as at the workers.

        Those of a checkpoint around the Pipe would run the Pipe again in the middle of its backward.
        """
        try:
            with without_saved_tensor_hooks():
                return run_mini_batch(self._own, self._jobs[self._name], self._given)
        except Abandoned:
            while not self._ends.empty():
                self._take_end({})  # raises the error if a worker ended it
            raise

    def _outcome_of(self, worker: str, answer: torch.futures.Future[Outcome]) -> Outcome:
        try:
            outcome = answer.value()
        except RuntimeError as error:
            stages = [
                str(stage) for stage, place in enumerate(self._places) if worker in place.workers
            ]
            raise RuntimeError(f"stage {', '.join(stages)} of the Pipe: {error}") from None
        if outcome.loss is None:
            raise RuntimeError(outcome.error)
        return outcome

    def _abandon(self, reason: str) -> None:
        """Ends the mini-batch everywhere, and waits until the workers have left it."""
        if self._own is not None:
            self._own.abandon(self._number, reason)
        for worker in self._jobs.keys() - {self._name}:
            with contextlib.suppress(RuntimeError):
                self._parts.begin(worker, calls.abandon, self._number, reason)
        for future in self._begun:
            with contextlib.suppress(Exception):
                future.wait()
