"""torch.distributed.pipelining over gloo: a stage per process, GPipe's schedule.

It has no forward that gives a loss to its caller: forward runs as ``eval``, both ways as ``step``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from bench.pipe import metrics, processes
from bench.pipe.metrics import Figures


def join() -> None:
    """Makes the group; BENCH_RANK and BENCH_STORE say who and where."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['BENCH_STORE']}",
        rank=int(os.environ["BENCH_RANK"]),
        world_size=metrics.STAGES,
    )


def _loss(output: Tensor, _target: Tensor) -> Tensor:
    return output.sum()


def _schedule(layers: list[nn.Module], chunks: int) -> ScheduleGPipe:
    rank = dist.get_rank()
    stage = PipelineStage(layers[rank], rank, metrics.STAGES, torch.device("cpu"))
    return ScheduleGPipe(stage, n_microbatches=chunks, loss_fn=_loss)


def _median(call: Callable[[], object], count: int) -> float:
    """The median of the slower process's times; both run it equally often."""
    times = []
    for number in range(count + 3):
        dist.barrier()
        began = time.perf_counter()
        call()
        spent = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        if number >= 3:
            times.append(spent.item())
    return sorted(times)[len(times) // 2]


def _both(layers: list[nn.Module], batch: Tensor, chunks: int, count: int) -> dict[str, float]:
    """Seconds of forward and of both ways."""
    schedule = _schedule(layers, chunks)
    first = dist.get_rank() == 0

    def step() -> None:
        if first:
            schedule.step(batch)
        else:
            schedule.step(target=torch.zeros(len(batch)))

    def forward() -> None:
        with torch.no_grad():
            if first:
                schedule.eval(batch)
            else:
                schedule.eval(target=torch.zeros(len(batch)))

    back = _median(step, count)
    return {"both ways": back, "forward": _median(forward, count)}


def _by_hand(layers: list[nn.Module], batch: Tensor, chunks: int) -> dict[str, float]:
    """The same in the first process alone, while the other waits."""
    result = torch.zeros(2, dtype=torch.float64)
    if dist.get_rank() == 0:
        run = metrics.by_hand(layers, chunks)
        result[0] = metrics.median_seconds(lambda: metrics._without_graph(run, batch))
        result[1] = metrics.median_seconds(metrics.each_by_hand(layers, batch, chunks, _loss))
    dist.broadcast(result, 0)
    return {"forward": result[0].item(), "both ways": result[1].item()}


def measure(name: str) -> Figures:
    """The metric of this name, as far as there is one here; the same figures in both processes."""
    return processes.measure(name, _by_hand, _both)
