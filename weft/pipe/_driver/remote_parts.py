"""The parts of a pipeline at its workers, for the driver: builds them, and calls functions there."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed.rpc as rpc

from weft._observe.clocks import clock_offset
from weft._torch import current
from weft._torch.forks import forks
from weft.pipe._driver.script_worker import ScriptWorker, has_no_python
from weft.pipe._driver.stages import StageLayers
from weft.pipe._driver.uninterrupted import Uninterrupted
from weft.pipe._workers import calls
from weft.pipe._workers.parcels import Parcel, pack
from weft.pipe._workers.part import Layer
from weft.pipe._workers.schedule import workers_of

T = TypeVar("T")


def as_a_whole(method: Callable[..., T]) -> Callable[..., T]:
    """Makes the method of an object that has ``_parts`` one piece, as :meth:`RemoteParts.as_a_whole`."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> T:
        return self._parts.as_a_whole(functools.partial(method, self, *args, **kwargs))

    return call


def _packed(layers: dict[int, list[Layer]], set_up: list[calls.Call], worker: str) -> Parcel:
    try:
        return pack((layers, set_up))
    except Exception as error:
        for layer in itertools.chain.from_iterable(layers.values()):
            try:
                pack(layer)
                forks.forget_last_message()  # it is not sent
            except Exception:
                raise TypeError(
                    f"layer '{layer.name}' of the Pipe cannot be sent to worker '{worker}': {error}. Let "
                    f"the worker build it: weft.RemoteModule('{worker}/cpu', cls, args)"
                ) from error
        raise


class RemoteParts:
    """Keeps what each worker was given, to build it again at one that was restarted.

    ``begin`` may come from any thread. ``call``, ``set_up`` and ``as_a_whole`` come from one at a time:
    what they do runs on weft-driver.

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
        self._half_set_up: set[str] = set()  # at some workers: the call failed
        self._scripted: dict[str, ScriptWorker] = {}  # those without Python
        self._holds: dict[str, calls.Hold | rpc.RRef[calls.Hold]] = {}
        self._outputs: list[torch.futures.Future[Any]] = []  # as they become RRefs
        self._calls = Uninterrupted()
        self._closed = False
        self.places = [stage.place for stage in stages]
        self.workers = workers_of([place.workers for place in self.places])

    @property
    def layers(self) -> list[str]:
        """The names of all layers, in order."""
        return [layer.name for stage in self._stages for layer in stage.layers]

    def build(self) -> None:
        """Builds all parts.

        Raises:
            NotImplementedError, ValueError: a worker without Python cannot have its stage; nothing
                was built.
        """
        self._find_scripted(self.workers)
        self._build(self.workers)

    @contextlib.contextmanager
    def with_missing(self) -> Iterator[None]:
        """Builds the parts of workers that were restarted, and sets them up as the others.

        They go again where this or what is done with them raises: nobody trains parameters that are
        not those of the checkpoint.

        Raises:
            RuntimeError: a worker is not back yet.
            ValueError: a remote module cannot be made again.
        """
        there = self.call(calls.has_part)
        missing = [worker for worker in there if not there[worker] or self._is_letting_go(worker)]
        for stage in self._stages:
            if stage.place.worker in missing:
                stage.make_again()
        self._find_scripted(missing)
        try:
            self._build(missing)
            yield
        except BaseException:
            for worker in missing:
                self._drop(worker)
            raise

    def _is_letting_go(self, worker: str) -> bool:
        """Whether a worker that was lost and is back has its part still, but is about to close it."""
        scripted = self._scripted.get(worker)
        hold = self._holds.get(worker) if scripted is None else scripted.hold
        return isinstance(hold, rpc.PyRRef) and current.agent()._is_orphan(hold)

    def _drop(self, worker: str) -> None:
        self._holds.pop(worker, None)
        with contextlib.suppress(RuntimeError):  # it is lost again, and has none
            self.begin(worker, calls.close).wait()

    def _find_scripted(self, workers: Sequence[str]) -> None:
        # All are asked before one is replaced: where that raises, all stay what they were.
        found = {**self._scripted, **{worker: self._script_worker(worker) for worker in workers}}
        self._scripted = {worker: one for worker, one in found.items() if one is not None}

    def _script_worker(self, worker: str) -> ScriptWorker | None:
        """None: the worker has Python."""
        if worker == rpc.get_worker_info().name or not has_no_python(worker):
            return None
        made = ScriptWorker(self._pipe, worker, self._layers_at(worker))
        made.check(self.places, self._deferred)
        return made

    def _layers_at(self, worker: str) -> dict[int, list[Layer]]:
        return {
            number: stage.layers
            for number, stage in enumerate(self._stages)
            if worker in stage.place.workers
        }

    def _build(self, workers: Sequence[str]) -> None:
        here = rpc.get_worker_info().name
        # This worker last, because that moves the modules.
        for worker in sorted(workers, key=here.__eq__):
            if worker in self._scripted:
                self._build_scripted(worker)
                continue
            set_up = list(self._set_up.values())
            layers = self._layers_at(worker)
            if worker == here:  # not by RPC, which would copy the modules and train the copies
                own = self._holds[worker] = calls.Hold(self._pipe)
                calls.build(self._pipe, here, self.places, layers, self._deferred, set_up, own)
            else:
                sent = _packed(layers, set_up, worker)
                hold = rpc.remote(worker, calls.Hold, args=(self._pipe,), timeout=0)
                args = (self._pipe, here, self.places, sent, self._deferred, hold)
                rpc.rpc_sync(worker, calls.build_sent, args=args, timeout=0)
                self._holds[worker] = hold

    def _build_scripted(self, worker: str) -> None:
        self._scripted[worker].build(rpc.get_worker_info().name, self.places).wait()
        try:
            for function, args in self._set_up.values():
                self.begin(worker, function, *args).wait()
        except BaseException:
            self.begin(worker, calls.close).wait()
            raise

    def begin(self, worker: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of the workers at one of them, without a timeout.

        Returns:
            What has ``wait()``, which is called once; for :func:`calls.run` also ``value()`` and
            ``add_done_callback()``.

        Raises:
            NotImplementedError: the worker has no Python, and cannot do that.
            RuntimeError: the Pipe was closed.
        """
        self.check_open()
        scripted = self._scripted.get(worker)
        if scripted is None:
            return rpc.rpc_async(worker, function, args=(self._pipe, *args), timeout=0)
        found = getattr(scripted, function.__name__, None)
        if found is None:
            scripted.refuse(f"{function.__name__} needs Python there")
        return found(*args)

    def take_output(self, worker: str, mini_batch: int) -> rpc.RRef[Any]:
        """An RRef of a forward's output."""
        if worker in self._scripted:
            output = self._scripted[worker].take_output(mini_batch)
        else:
            args = (self._pipe, mini_batch)
            output = rpc.remote(worker, calls.take_output, args=args, timeout=0)
        self._outputs = [one for one in self._outputs if not one.done()]
        taken = output._get_future()
        taken.add_done_callback(lambda _, parts=self: None)  # the stages stay until it is taken
        self._outputs.append(taken)
        return output

    def close(self) -> None:
        """Lets the workers drop the parts, also amid a mini-batch; those that are lost have none."""
        if self._closed:
            return
        for taken in self._outputs:  # RRefs of outputs stay when the stages go
            with contextlib.suppress(RuntimeError):
                taken.wait()
        for step in (self.wait_for_left, functools.partial(self._call, calls.close)):
            with contextlib.suppress(RuntimeError):
                step()
        self._holds.clear()
        self._closed = True

    def check_open(self) -> None:
        """Raises RuntimeError after :meth:`close`."""
        if self._closed:
            raise RuntimeError("the Pipe was closed, and cannot be used any more: make another one")

    def as_a_whole(self, work: Callable[[], T]) -> T:
        """Does what calls workers. Ctrl-C ends the wait for it, and then what comes next waits for it.

        Raises:
            RuntimeError: what Ctrl-C left has failed, and the work was not begun.
        """
        return self._calls.do(work)

    def wait_for_left(self) -> None:
        """Waits until no worker runs what Ctrl-C left; raises RuntimeError if that has failed."""
        self._calls.wait()

    def check_loss(self, loss: Callable[..., Any]) -> None:
        """Raises ValueError for a loss that a worker of the last stage cannot run."""
        for worker in self.places[-1].workers:
            if worker in self._scripted:
                self._scripted[worker].check_loss(loss)

    def check_graph(self) -> None:
        """Raises NotImplementedError where a worker cannot keep a graph for later."""
        for scripted in self._scripted.values():
            scripted.refuse(
                "it keeps no graph of an output: train with pipe.step, or call the Pipe under "
                "torch.no_grad() or after eval()"
            )

    def clock_offset(self, worker: str) -> int:
        """As :func:`weft._observe.clocks.clock_offset`."""
        if worker in self._scripted:
            return clock_offset(worker, there=self._scripted[worker].clock)
        return clock_offset(worker)

    def set_up(self, what: str, function: Callable[..., Any], *args: Any) -> calls.Call:
        """As :meth:`call`, and again for each part that is built later; the last one of each kind."""

        def call_and_note() -> calls.Call:
            self._half_set_up.add(what)
            self._call(function, *args)
            self._half_set_up.remove(what)
            made = self._set_up[what] = (function, args)
            return made

        return self.as_a_whole(call_and_note)

    def last_set_up(self, what: str) -> calls.Call | None:
        """What :meth:`set_up` gave last, unless it was forgotten."""
        self.wait_for_left()
        return self._set_up.get(what)

    def check_set_up(self, what: str) -> None:
        """Raises RuntimeError where the last :meth:`set_up` of this kind failed at some workers."""
        if what in self._half_set_up:
            raise RuntimeError(
                f"some workers of this Pipe may have another {what} than the rest, because the call that "
                f"makes the {what} failed: make it again"
            )

    def forget(self, what: str) -> None:
        """Parts that are built later are not set up with it."""
        self._set_up.pop(what, None)
        self._half_set_up.discard(what)

    def call(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """Calls a function at all workers at the same time. Returns what each gives.

        There is no timeout, as for all calls to workers: the loss of a worker ends its call. All calls
        have ended when this raises the first failure. Ctrl-C is as in :meth:`as_a_whole`.
        """
        return self.as_a_whole(lambda: self._call(function, *args))

    def _call(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        # Workers without Python first, because what they refuse then changes nothing elsewhere.
        order = sorted(self.workers, key=self._scripted.__contains__, reverse=True)
        futures: dict[str, Any] = {}
        results, failures = {}, []
        try:
            for worker in order:
                futures[worker] = self.begin(worker, function, *args)
        except Exception as error:
            failures.append(error)
        for worker in filter(futures.__contains__, self.workers):
            try:
                results[worker] = futures[worker].wait()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return results
