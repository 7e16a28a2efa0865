"""What the driver of a pipeline calls at a worker, over RPC."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc

from weft.pipe._workers.graph import Graph
from weft.pipe._workers.job import Job, Outcome, SkipRoute, StagePlace
from weft.pipe._workers.parcels import settle
from weft.pipe._workers.part import Layer, Part, part_of, parts
from weft.pipe._workers.run import run_mini_batch
from weft.pipe.skip._layout import Declared
from weft.pipe.skip._store import SkipKey

#: A function that takes the pipeline's name first, and its other arguments.
Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Hold:
    """The driver's hold on a part, which goes with it.

    The value of an RRef that the driver has: it goes when the driver drops that, or is lost.
    """

    def __init__(self, pipe: str) -> None:
        weakref.finalize(self, close, pipe).atexit = False


def build(
    pipe: str,
    driver: str,
    places: Sequence[StagePlace],
    stages: dict[int, list[Layer]],
    deferred: int,
    set_up: Sequence[Call],
    hold: rpc.RRef[Hold] | None = None,
) -> None:
    """Builds a part and calls these for it: all of it, or none.

    A driver on another worker gives its hold, which so cannot go while the part is built.
    """
    parts[pipe] = Part(pipe, driver, places, stages, deferred)
    try:
        for function, args in set_up:
            function(pipe, *args)
    except BaseException:
        close(pipe)
        raise


def has_part(pipe: str) -> bool:
    return pipe in parts


def declared_skips(pipe: str) -> list[tuple[int, Declared]]:
    return part_of(pipe).declared_skips()


def connect(pipe: str, routes: Sequence[tuple[SkipRoute, SkipKey]]) -> None:
    part_of(pipe).connect(routes)


@rpc.functions.async_execution
def run(pipe: str, job: Job) -> torch.futures.Future[Outcome]:
    """Runs a mini-batch here; with an accelerator, in a thread of its own: it has other streams than
    the call.
    """
    part = part_of(pipe)
    done: torch.futures.Future[Outcome] = torch.futures.Future()
    if part.is_on_host:
        done.set_result(_outcome(part, job))
        return done
    if job.given is not None:
        settle(tensor.device for tensor in job.given[1])
    thread = threading.Thread(
        target=lambda: done.set_result(_outcome(part, job)), name="weft-pipe", daemon=True
    )
    thread.start()
    return done


def _outcome(part: Part, job: Job) -> Outcome:
    try:
        return run_mini_batch(part, job)
    except Exception as error:
        return Outcome(None, str(error) or repr(error))


def open_graph(pipe: str) -> Graph:
    """A place for what is kept of a forward; it goes when the driver drops the RRef of it."""
    graph = Graph()
    part_of(pipe).graphs.add(graph)
    return graph


def abandon(pipe: str, step: int, reason: str) -> None:
    if pipe in parts:
        parts[pipe].abandon(step, reason)


def take_output(pipe: str, step: int) -> Any:
    return part_of(pipe).take_output(step)


def close(pipe: str) -> None:
    part = parts.pop(pipe, None)
    if part is not None:
        part.close()
