"""Pipelines over workers in a group whose calls may take a second: what workers do may take longer."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

import torch
import worker_models as models
from torch import nn
from worker_pipes import CROSS_ENTROPY, pipe_of_layers
from workers import Group


def is_slow_to_move() -> None:
    import weft

    slow = weft.WithDevice(models.SlowToMove(4, 3), "worker1/cpu")
    pipe = weft.Pipe(nn.Sequential(slow), schedule="gpipe")
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    pipe.close()


def test_the_timeout_of_calls_does_not_bound_what_workers_are_asked_for():
    with Group(2, rpc_timeout=1) as workers:
        workers[0].call(is_slow_to_move)
        workers.shutdown()


@contextlib.contextmanager
def stopped_for_longer_than_a_call_may_take(worker: str) -> Iterator[None]:
    import torch.distributed.rpc as rpc

    process = rpc.rpc_sync(worker, os.getpid)
    os.kill(process, signal.SIGSTOP)
    again = threading.Timer(2, os.kill, (process, signal.SIGCONT))
    again.start()
    yield
    again.join()


def waits_for_a_stopped_worker() -> None:
    pipe = pipe_of_layers([nn.Linear(4, 3)], "1", 2, "gpipe", "never")
    inputs, targets = models.batch()
    take_output = pipe._parts.take_output

    def stop_and_take(worker: str, mini_batch: int):
        with stopped_for_longer_than_a_call_may_take(worker):
            return take_output(worker, mini_batch)

    with stopped_for_longer_than_a_call_may_take("worker1"):
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe._parts.take_output = stop_and_take
    with torch.no_grad():
        assert pipe(inputs).to_here(timeout=0).shape == (models.ROWS, 3)
    pipe.close()


def test_nor_the_values_that_they_are_sent():
    with Group(2, rpc_timeout=1, peer_timeout=60) as workers:
        workers[0].call(waits_for_a_stopped_worker)
        workers.shutdown()


def waits_for_a_slow_first_stage() -> None:
    import weft
    from weft.pipe._workers.job import Outcome

    weft.register_function(Outcome)  # which workers answer with
    layers = [models.TakesLong(), nn.Linear(4, 3)]
    pipe = pipe_of_layers(layers, "12", 1, "gpipe", "never")
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    pipe.close()


def test_a_driver_that_takes_registered_functions_alone_is_asked_whether_it_is_there():
    with Group(3, per_rank=[{"request_policy": "registered"}, {}, {}]) as workers:
        workers[0].call(waits_for_a_slow_first_stage)
        workers.shutdown()
