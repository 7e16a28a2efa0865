"""The driver's hold on the parts of a pipeline at its workers: builds them, calls functions there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed.rpc as rpc

from weft.pipe._driver.stages import StageLayers
from weft.pipe._workers import calls
from weft.pipe._workers.schedule import workers_of


class RemoteParts:
    """Keeps what each worker was given, to build it again at one that was restarted.

    Args:
        pipe: the pipeline's name.
        stages: all of them.
        deferred: over how many micro-batches batch norms are deferred, 0 for not at all.
    """

    def __init__(self, pipe: str, stages: Sequence[StageLayers], deferred: int) -> None:
        self._pipe = pipe
        self._stages = list(stages)
        self._deferred = deferred
        self._set_up: dict[str, calls.Call] = {}
        self.places = [stage.place for stage in stages]
        self.workers = workers_of([place.workers for place in self.places])

    def build(self) -> None:
        """Builds all of them."""
        self._build(self.workers)

    def build_missing(self) -> None:
        """Builds them at workers that were restarted, with what all were set up with.

        Raises:
            RuntimeError: a worker is not back yet.
            ValueError: a remote module cannot be made again.
        """
        missing = [worker for worker, there in self.call(calls.has_part).items() if not there]
        for stage in self._stages:
            if stage.place.worker in missing:
                stage.make_again()
        self._build(missing)

    def _build(self, workers: Sequence[str]) -> None:
        here = rpc.get_worker_info().name
        for worker in sorted(workers, key=here.__eq__):  # here last: it moves the modules
            own = {
                number: stage.layers
                for number, stage in enumerate(self._stages)
                if worker in stage.place.workers
            }
            given = (here, self.places, own, self._deferred, list(self._set_up.values()))
            if worker == here:  # the very modules: RPC would make copies, and train those
                calls.build(self._pipe, *given)
            else:
                rpc.rpc_sync(worker, calls.build, args=(self._pipe, *given), timeout=0)

    def set_up(self, what: str, function: Callable[..., Any], *args: Any) -> None:
        """As :meth:`call`, and again wherever a part is built later; the last one counts."""
        self.call(function, *args)
        self._set_up[what] = (function, args)

    def call(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """What a function of the workers gives at each of them; all run at the same time.

        Without a timeout, as all that workers are asked for: a lost one ends the call. All have ended
        when this raises the first failure.
        """
        futures = {
            worker: rpc.rpc_async(worker, function, args=(self._pipe, *args), timeout=0)
            for worker in self.workers
        }
        results, failures = {}, []
        for worker, future in futures.items():
            try:
                results[worker] = future.wait()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return results
