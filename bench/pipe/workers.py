"""Weft's Pipe with a stage per worker, GPipe's schedule: rank 0 drives it and has the first stage.

It has no forward that gives a loss to its caller: forward runs as ``pipe(batch)`` without
gradients, both ways as ``pipe.step``. Inputs want no gradients.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

from bench.pipe import metrics, processes
from bench.pipe.metrics import Figures


class Sum(nn.Module):
    """A loss that costs next to nothing."""

    reduction = "sum"

    def forward(self, output: Tensor, _target: Tensor) -> Tensor:
        return output.sum()


def join() -> None:
    """Makes the group; BENCH_RANK and BENCH_STORE say who and where."""
    import weft

    rank = int(os.environ["BENCH_RANK"])
    weft.init_rpc(
        f"stage{rank}",
        rank=rank,
        world_size=metrics.STAGES,
        rpc_backend_options=weft.RpcBackendOptions(
            init_method=f"file://{os.environ['BENCH_STORE']}"
        ),
    )


def _median(call: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count + 3):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


def _loss_of(layers: list[nn.Module]) -> nn.Module:
    return torch.jit.script(Sum()) if isinstance(layers[0], torch.jit.ScriptModule) else Sum()


def _both(layers: list[nn.Module], batch: Tensor, chunks: int, count: int) -> dict[str, float]:
    import weft

    placed = [weft.WithDevice(layer, f"stage{at}/cpu") for at, layer in enumerate(layers)]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks, "never", schedule="gpipe")
    target, loss = torch.zeros(len(batch)), _loss_of(layers)
    back = _median(lambda: pipe.step(batch, target, loss=loss), count)
    with torch.no_grad():
        forward = _median(lambda: pipe(batch), count)
    pipe.close()
    return {"both ways": back, "forward": forward}


def _by_hand(layers: list[nn.Module], batch: Tensor, chunks: int) -> dict[str, float]:
    """The same micro-batches in one process."""
    forward = metrics.by_hand(layers, chunks)
    both_ways = metrics.each_by_hand(layers, batch, chunks, _loss_of(layers))
    return {
        "forward": metrics.median_seconds(lambda: metrics._without_graph(forward, batch)),
        "both ways": metrics.median_seconds(both_ways),
    }


def measure(name: str) -> Figures:
    """The metric of this name, as far as there is one here; nothing in the other process."""
    if rpc.get_worker_info().id != 0:
        return {}
    return processes.measure(name, _by_hand, _both, input_gradient=False, scripts=True)
