"""What the driver of a pipeline calls at a worker, over RPC."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc

from weft.pipe._workers.graph import Graph
from weft.pipe._workers.job import Job, Outcome, SkipRoute, StagePlace, text_of
from weft.pipe._workers.parcels import Parcel, settle, unpack
from weft.pipe._workers.part import Layer, Part, part_of, parts
from weft.pipe._workers.run import run_mini_batch
from weft.pipe.skip._layout import Declared
from weft.pipe.skip._store import SkipKey

#: A function that takes the pipeline's name first, and its other arguments.
Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Hold:
    """Keeps a part for the driver: when this is destroyed, the part is closed.

    It is the value of an RRef of the driver's, so it is destroyed when the driver drops that or is lost.
    """

    def __init__(self, pipe: str) -> None:
        self._held: list[weakref.ref[Part]] = []
        weakref.finalize(self, _let_go, pipe, self._held).atexit = False

    def bind(self, part: Part) -> None:
        """Makes the hold close this part, and no other one of its pipeline, when it is destroyed."""
        self._held.append(weakref.ref(part))


def _let_go(pipe: str, held: list[weakref.ref[Part]]) -> None:
    if held and parts.get(pipe) is held[0]():
        close(pipe)


def build(
    pipe: str,
    driver: str,
    places: Sequence[StagePlace],
    stages: dict[int, list[Layer]],
    deferred: int,
    set_up: Sequence[Call],
    hold: Hold | rpc.RRef[Hold],
) -> None:
    """Builds a part and calls the functions of ``set_up`` for it; builds nothing if one fails.

    The driver's ``hold`` closes it.
    """
    close(pipe)  # one whose driver was out of reach, and has forgotten it
    parts[pipe] = Part(pipe, driver, places, stages, deferred)
    try:
        for function, args in set_up:
            function(pipe, *args)
    except BaseException:
        close(pipe)
        raise
    (hold if isinstance(hold, Hold) else hold.local_value()).bind(parts[pipe])


def build_sent(
    pipe: str,
    driver: str,
    places: Sequence[StagePlace],
    sent: Parcel,
    deferred: int,
    hold: rpc.RRef[Hold],
) -> None:
    """As :func:`build`, of packed stages and calls.

    Packed apart from ``hold``: if a class is not known here, only the unpacking fails. An RRef in a
    message that cannot be read would stay with its owner, and delay the shutdown.
    """
    stages, set_up = unpack(sent)
    build(pipe, driver, places, stages, deferred, set_up, hold)


def has_part(pipe: str) -> bool:
    return pipe in parts


def declared_skips(pipe: str) -> list[tuple[int, Declared]]:
    return part_of(pipe).declared_skips()


def connect(pipe: str, routes: Sequence[tuple[SkipRoute, SkipKey]]) -> None:
    part_of(pipe).connect(routes)


@rpc.functions.async_execution
def run(pipe: str, job: Job) -> torch.futures.Future[Outcome]:
    """Runs a mini-batch in the part's thread, so that RPC threads stay free for what it waits for."""
    part = part_of(pipe)
    if job.given is not None:  # the thread has other streams than this call
        settle(tensor.device for tensor in job.given[1])
    done: torch.futures.Future[Outcome] = torch.futures.Future()

    def work() -> None:
        try:
            outcome = run_mini_batch(part, job)
        except BaseException as error:  # also SystemExit: nobody else would answer the driver
            outcome = Outcome(None, text_of(error))
        done.set_result(outcome)

    part.runner.run(work)
    return done


def open_graph(pipe: str) -> Graph:
    """Makes a place for what is kept of a forward, until the driver drops its RRef."""
    graph = Graph()
    part_of(pipe).graphs.add(graph)
    return graph


def abandon(pipe: str, mini_batch: int, reason: str) -> None:
    if pipe in parts:
        parts[pipe].abandon(mini_batch, reason)


def take_output(pipe: str, mini_batch: int) -> Any:
    return part_of(pipe).take_output(mini_batch)


def close(pipe: str) -> None:
    part = parts.pop(pipe, None)
    if part is not None:
        part.close()
