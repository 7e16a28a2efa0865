"""The driver's hold on the part of a pipeline at a worker without Python: a C++ program that called
``weft::servePipelines()``. It takes scripted stages, and TorchScript's values in place of pickles
(jit_ops/cpp_api/pipeline_worker.cpp).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor

from weft.calling import call_async, call_remote
from weft.pipe._driver.script_optimizer import ScriptOptimizer
from weft.pipe._workers.job import Done, Job, Outcome, StagePlace, Work
from weft.pipe._workers.parcels import unpack
from weft.pipe._workers.part import Layer
from weft.pipe._workers.schedule import plan_of
from weft.pipe._workers.scripted import SavedLoss, is_scripted
from weft.pipe._workers.shards import save_shard, take_shards
from weft.pipe._workers.splitting import split
from weft.pipe._workers.state import metadata_of, with_metadata
from weft.pipe._workers.worker_optimizer import State
from weft.publishing import published

_NAME = "weft.pipeline"


def has_no_python(worker: str) -> bool:
    """Whether the worker is a C++ program that takes stages."""
    return any(one.name == _NAME for one in published(worker, timeout=0))


class ScriptAnswer:
    """What a worker answers, made of TorchScript's values when it is asked for."""

    def __init__(self, future: torch.futures.Future[Any], read: Callable[[Any], Any]) -> None:
        self._future = future
        self._read = read

    def wait(self) -> Any:
        return self._read(self._future.wait())

    def value(self) -> Any:
        return self._read(self._future.value())

    def add_done_callback(self, callback: Callable[[ScriptAnswer], None]) -> None:
        self._future.add_done_callback(lambda _: callback(self))


class DoneByDriver:
    """What the driver does itself for such a worker, when it is waited for, which is once."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._function = function
        self._args = args

    def wait(self) -> Any:
        return self._function(*self._args)


class ScriptWorker:
    """Has a method for each function that other workers are called with, under its name.

    Each returns what has ``wait()``. A method that refuses raises before anything is sent.

    Args:
        pipe: the pipeline's name.
        worker: its name.
        stages: those there, by their numbers.
    """

    def __init__(self, pipe: str, worker: str, stages: Mapping[int, Sequence[Layer]]) -> None:
        self._pipe = pipe
        self._worker = worker
        self._target = f"{worker}/{_NAME}"
        self._stages = {number: list(layers) for number, layers in stages.items()}
        self._layers = {layer.name: layer.module for one in stages.values() for layer in one}
        self._optimizer = ScriptOptimizer(self._where(*self._stages), self._layers)
        self._workers: tuple[tuple[str, ...], ...] = ()  # of all stages, once it is built
        self._snapshot: State | None = None
        #: The part there goes with it.
        self.hold: rpc.RRef[Any] | None = None

    def _where(self, *stages: int) -> str:
        numbers = ", ".join(map(str, stages))
        return f"stage {numbers} of the Pipe is on worker '{self._worker}', a C++ program"

    def refuse(self, why: str) -> None:
        """Raises NotImplementedError."""
        raise NotImplementedError(f"{self._where(*self._stages)}: {why}")

    def check(self, places: Sequence[StagePlace], deferred: int) -> None:
        """Refuses what the worker cannot do, before a stage is built anywhere."""
        for number, layers in self._stages.items():
            where = self._where(number)
            if len(places[number].workers) > 1:
                raise ValueError(f"{where}: such a stage has no replicas")
            if torch.device(places[number].device_at(self._worker)).type != "cpu":
                raise ValueError(f"{where}, which runs stages on the CPU alone")
            for layer in layers:
                if not is_scripted(layer.module):
                    kind = type(layer.module).__name__
                    raise ValueError(
                        f"{where}, and its layer '{layer.name}' is a {kind}: give it "
                        "torch.jit.script(layer), without hooks, or a worker with Python"
                    )
                if layer.shared:
                    raise ValueError(
                        f"{where}, and shares buffer '{layer.name}.{layer.shared[0]}' with a stage on "
                        "another worker, which would get a copy: give each a module of its own, or a "
                        "worker with Python, which notices a change"
                    )
        if deferred:
            self.refuse("deferred_batch_norm=True is for workers with Python")

    def check_loss(self, loss: Any) -> None:
        """Refuses a loss that the worker, which has the last stage, cannot run."""
        if not is_scripted(loss):
            raise ValueError(
                f"{self._where(*self._stages)}, and the loss is a {type(loss).__name__}: give "
                "torch.jit.script(loss), or the last stage a worker with Python"
            )

    def _call(
        self, method: str, *args: Any, read: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        return ScriptAnswer(
            call_async(self._target, self._pipe, *args, method=method, timeout=0), read
        )

    # As weft.pipe._workers.calls

    def build(self, driver: str, places: Sequence[StagePlace]) -> Any:
        self._workers = tuple(place.workers for place in places)
        modules = {id(module): module for module in self._layers.values()}
        place = {one: at for at, one in enumerate(modules)}
        stages = [
            (number, [(layer.name, place[id(layer.module)]) for layer in layers])
            for number, layers in self._stages.items()
        ]
        workers = [list(one.workers) for one in places]
        given = [_bytes(module.save_to_buffer()) for module in modules.values()]
        self.hold = call_remote(
            self._target, self._pipe, driver, workers, stages, given, method="build", timeout=0
        )
        return DoneByDriver(self.hold._get_future().wait)

    def has_part(self) -> Any:
        return self._call("has_part")

    def declared_skips(self) -> Any:
        return DoneByDriver(list)  # TorchScript has no skips

    def connect(self, _routes: Any) -> Any:
        return DoneByDriver(lambda: None)  # what goes along skip connections goes past this worker

    def run(self, job: Job) -> Any:
        loss = job.criterion if isinstance(job.criterion, SavedLoss) else None
        targets: list[Any] = []
        if job.given is not None:
            targets = split(unpack(job.given), len(job.weights))

        tasks = plan_of(job.plan_spec, self._workers)[self._worker]

        def outcome(
            answer: tuple[Tensor | None, str, Tensor, dict[int, list[Tensor | None]]],
        ) -> Outcome:
            found, error, times, gradients = answer
            if found is None:
                return Outcome(None, error)
            ran = zip(tasks, times.tolist(), strict=True)
            done = [Done(task, *at) for task, at in ran] if job.recorded else []
            return Outcome(found, "", done, gradients if any(gradients.values()) else {})

        return self._call(
            "run",
            job.mini_batch,
            [tuple(task) for task in tasks],
            job.recompute,
            job.work is Work.STEP,
            None if loss is None else _bytes(loss.saved),
            targets,
            list(job.weights),
            read=outcome,
        )

    def abandon(self, mini_batch: int, reason: str) -> Any:
        return self._call("abandon", mini_batch, reason)

    def take_output(self, mini_batch: int) -> rpc.RRef[Any]:
        """An RRef of it."""
        return call_remote(self._target, self._pipe, mini_batch, method="take_output", timeout=0)

    def close(self) -> Any:
        self.hold = None
        return self._call("close")

    def clock(self) -> int:
        """The worker's time.monotonic_ns(), as it answers."""
        return call_async(self._target, method="clock", timeout=0).wait()

    # As weft.pipe._workers.state

    def layers_state(self) -> Any:
        metadata = metadata_of({name: one.state_dict() for name, one in self._layers.items()})
        return self._call("layers_state", read=lambda found: with_metadata(found, metadata))

    def load_layers(self, state: Mapping[str, Any]) -> Any:
        beginnings = tuple(f"{name}." for name in self._layers)
        own = {
            key: value
            for key, value in state.items()
            if key.startswith(beginnings) and isinstance(value, Tensor)
        }
        return self._call("load_layers", own)

    def change(self, method: str, *args: Any) -> Any:
        return self._call(method, *args)  # train or zero_grad

    def gradient_norms(self, norm_type: float) -> Any:
        first = next(iter(self._layers))  # that worker does not say which layer each is of
        return self._call(
            "gradient_norms", float(norm_type), read=lambda norms: [(first, one) for one in norms]
        )

    def scale_gradients(self, factor: float) -> Any:
        return self._call("scale_gradients", factor)

    def make_optimizer(
        self, cls: Callable[..., torch.optim.Optimizer], options: dict[str, Any]
    ) -> Any:
        self._optimizer.make(cls, options)
        return self._call("make_optimizer")

    def make_scheduler(self, cls: Callable[..., Any], options: dict[str, Any]) -> Any:
        return DoneByDriver(self._optimizer.make_scheduler, cls, options)

    def call_optimizer(self, what: str, method: str, *args: Any) -> Any:
        if what == "scheduler":
            return DoneByDriver(self._optimizer.call_scheduler, method, *args)
        if method == "zero_grad":
            return self._call("zero_grad", *args)
        return self._call("optimize", *self._optimizer.next_step())

    def optimizer_state(self) -> Any:
        return self._call("optimizer_state", read=self._optimizer.state)

    def optimized(self) -> Any:
        return DoneByDriver(self._optimizer.names)

    def load_optimizer(self, state: State) -> Any:
        return self._call("load_optimizer", self._optimizer.load(state))

    # Checkpoints: the driver reads and writes the worker's shard

    def take_snapshot(self) -> Any:
        return DoneByDriver(self._take_snapshot)

    def _take_snapshot(self) -> None:
        self._snapshot = self._shard()

    def _shard(self) -> State:
        return {"layers": self.layers_state().wait(), "optimizer": self.optimizer_state().wait()}

    def write_shard(self, folder: str, number: int, snapshot: bool) -> Any:
        return DoneByDriver(self._write_shard, folder, number, snapshot)

    def _write_shard(self, folder: str, number: int, snapshot: bool) -> None:
        shard = self._snapshot if snapshot else self._shard()
        self._snapshot = None
        save_shard(shard, folder, number)

    def read_shards(self, folder: str, names: Sequence[str]) -> Any:
        return DoneByDriver(self._read_shards, folder, names)

    def _read_shards(self, folder: str, names: Sequence[str]) -> None:
        def load(state: State) -> Any:
            return self.load_layers(state).wait()

        self.load_optimizer(take_shards(folder, names, self._layers, load)).wait()


def _bytes(saved: bytes) -> Tensor:
    return torch.frombuffer(bytearray(saved), dtype=torch.uint8)
