"""What the driver of a pipeline calls at a worker, over RPC."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc

from weft import _C
from weft.pipe._workers.job import Job, Outcome, StagePlace
from weft.pipe._workers.parcels import settle
from weft.pipe._workers.part import Layer, Part, part_of, parts
from weft.pipe._workers.run import run_mini_batch


def build(
    pipe: str,
    driver: str,
    places: Sequence[StagePlace],
    stages: dict[int, list[Layer]],
    deferred: int,
) -> None:
    parts[pipe] = Part(pipe, driver, places, stages, deferred)


@rpc.functions.async_execution
def run(pipe: str, job: Job) -> torch.futures.Future[Outcome]:
    """Runs in a thread of its own: the RPC threads stay free for what arrives."""
    part = part_of(pipe)
    if job.targets is not None:  # the thread has other streams than the call
        settle(tensor.device for tensor in job.targets[1])
    done: torch.futures.Future[Outcome] = torch.futures.Future()

    def work() -> None:
        try:
            outcome = run_mini_batch(part, job)
        except Exception as error:
            outcome = Outcome(None, str(error) or repr(error))
        done.set_result(outcome)

    threading.Thread(target=work, name="weft-pipe", daemon=True).start()
    return done


def abandon(pipe: str, step: int, reason: str) -> None:
    if pipe in parts:
        parts[pipe].abandon(step, reason)


def take_output(pipe: str, step: int) -> Any:
    return part_of(pipe).take_output(step)


def close(pipe: str) -> None:
    if parts.pop(pipe, None) is not None:
        _C.pipe.close_arrivals(pipe)
