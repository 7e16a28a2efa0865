"""A worker's part of a pipeline: its stages, and what has come for them.

Values between stages go from worker to worker in C++ (pipe/workers).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from weft import _C
from weft.pipe._batchnorm import DeferredBatchNorm
from weft.pipe._workers.graph import Graph
from weft.pipe._workers.job import Abandoned, Arrival, SkipRoute, StagePlace
from weft.pipe._workers.parcels import adopt, settle, unpack
from weft.pipe._workers.replicas import Replicas
from weft.pipe._workers.runner import Runner
from weft.pipe._workers.schedule import PlanSpec, Task, plan_of
from weft.pipe._workers.stage import Stage
from weft.pipe._workers.worker_optimizer import WorkerOptimizer
from weft.pipe.skip._layout import Declared
from weft.pipe.skip._store import SkipKey
from weft.remote_module import RemoteModule

_LOOK = 1.0  # seconds without an arrival before the driver is asked whether it is there


class Layer(NamedTuple):
    """A layer on its way to its worker: a module, or a remote one that is there."""

    name: str
    module: nn.Module
    #: Its buffers that a stage elsewhere has too, which gets a copy of them.
    shared: tuple[str, ...] = ()

    def here(self, device: torch.device, deferred: int) -> nn.Module:
        """The module; its batch norms are deferred over so many micro-batches, 0 for not at all."""
        module = self.module
        if isinstance(module, RemoteModule):
            module = module.get_module_rref().local_value()
        else:
            module = module.to(device)
        if deferred:
            return DeferredBatchNorm.convert_deferred_batch_norm(module, deferred)
        return module


class Part:
    """The stages of one pipeline at this worker.

    The thread that runs a mini-batch (weft-pipe; at the driver the caller's) has the stages, and calls
    ``tasks``, ``take`` and ``keep_output``. ``abandon``, ``take_output`` and ``close`` may come from any
    thread; the rest from one of RPC while no mini-batch runs, which the driver sees to.
    """

    def __init__(
        self,
        pipe: str,
        driver: str,
        places: Sequence[StagePlace],
        stages: dict[int, list[Layer]],
        deferred: int,
    ) -> None:
        self.pipe = pipe
        self.driver = driver
        self.places = list(places)
        self._workers = tuple(place.workers for place in places)
        self.name = rpc.get_worker_info().name
        self.stages: dict[int, Stage] = {}
        #: By the name in the plain Sequential.
        self.layers: dict[str, nn.Module] = {}
        #: Those of which another worker gives the state: it has the first replica.
        self.copies: set[str] = set()
        self.optimizer = WorkerOptimizer({})
        #: The state that waits to be written into a checkpoint.
        self.snapshot: dict[str, Any] | None = None
        for number, layers in stages.items():
            device = torch.device(self.places[number].device_at(self.name))
            made = {layer.name: layer.here(device, deferred) for layer in layers}
            self.layers.update(made)
            if self.places[number].worker != self.name:
                self.copies.update(made)
            shared = [f"{at}.{name}" for at, layer in enumerate(layers) for name in layer.shared]
            self.stages[number] = Stage(list(made.values()), device, shared)
        self.replicas = self._find_replicas()
        self.settle()
        #: Runs the mini-batches, but for the driver's own part.
        self.runner = Runner()
        self.arrivals = _C.pipe.open_arrivals(pipe)
        self.skips: list[SkipRoute] = []
        #: What is kept of forwards for backwards that may come.
        self.graphs: weakref.WeakSet[Graph] = weakref.WeakSet()
        self._outputs: dict[int, Any] = {}

    def _find_replicas(self) -> list[Replicas]:
        """Stages with replicas at the same workers may share parameters."""
        alike: dict[tuple[str, ...], list[int]] = {}
        for number in self.stages:
            alike.setdefault(self.places[number].workers, []).append(number)
        return [
            Replicas(
                workers,
                numbers,
                (one for at in numbers for one in self.stages[at].layers.parameters()),
            )
            for workers, numbers in alike.items()
            if len(workers) > 1
        ]

    def tasks(self, spec: PlanSpec) -> list[Task]:
        """This worker's tasks of a mini-batch."""
        return plan_of(spec, self._workers)[self.name]

    def abandon(self, mini_batch: int, reason: str) -> None:
        """Ends a mini-batch: its run, if there is one, stops at its next wait; its output is dropped."""
        # A text of Python's may have what UTF-8 has not, such as a file's name of other bytes.
        self.arrivals.end(mini_batch, reason.encode(errors="backslashreplace").decode())
        self._outputs.pop(mini_batch, None)

    def take(self, key: Arrival) -> Any:
        """Waits for what another worker sends.

        Raises:
            Abandoned: the mini-batch was given up, or the driver is lost.
        """
        while True:
            try:
                parcel = self.arrivals.take(key, _LOOK)
                if parcel is None and self.name != self.driver:
                    _C.pipe.ping(self.driver)
            except RuntimeError as error:
                raise Abandoned(str(error)) from None
            if parcel is not None:
                adopt(parcel[1])
                return unpack(parcel)

    def settle(self) -> None:
        """Waits for the current streams: the next call that touches the layers runs on others."""
        settle(stage.device for stage in self.stages.values())

    def keep_output(self, mini_batch: int, output: Any) -> None:
        """Keeps a forward's output, if there is one, until the driver asks for it or gives it up.

        Called before the mini-batch ends here: until then, only the driver ends it.
        """
        if output is not None:
            self._outputs[mini_batch] = output
        if self.arrivals.is_over(mini_batch):  # abandon() may have come before the output
            self._outputs.pop(mini_batch, None)

    def take_output(self, mini_batch: int) -> Any:
        """The output of a forward, once."""
        output = self._outputs.pop(mini_batch)
        adopt(leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor))
        return output

    def declared_skips(self) -> list[tuple[int, Declared]]:
        """What the stages' layers stash and pop, with the stage."""
        names = {id(module): name for name, module in self.layers.items()}
        return [
            (number, declared)
            for number, stage in self.stages.items()
            if self.places[number].worker == self.name  # of replicas, the first one
            for layer in stage.layers
            for declared in Declared.inside(names[id(layer)], layer)
        ]

    def connect(self, routes: Sequence[tuple[SkipRoute, SkipKey]]) -> None:
        """Learns of all skip connections between stages, by their numbers."""
        self.skips = [route for route, _ in routes]
        latest_first = sorted(enumerate(routes), key=lambda one: -one[1][0].end)
        for number, (route, key) in latest_first:
            if route.begin in self.stages:
                self.stages[route.begin].stashes[number] = key
            if route.end in self.stages:
                self.stages[route.end].pops[number] = key

    def close(self) -> None:
        """Drops what is kept for backwards, and ends what runs."""
        self.runner.close()
        _C.pipe.close_arrivals(self.pipe, self.arrivals)
        for graph in list(self.graphs):  # a late call may add one
            graph.drop()


#: The parts at this worker, by the names of their pipelines.
parts: dict[str, Part] = {}


def part_of(pipe: str) -> Part:
    """The part of a pipeline at this worker; raises for one that it does not have."""
    part = parts.get(pipe)
    if part is None:
        raise RuntimeError(_C.pipe.no_stage_at(rpc.get_worker_info().name))
    return part
