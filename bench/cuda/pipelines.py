"""What a Pipe on one or two devices costs beside the same stages in a plain loop."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

CHUNKS = 8


def _stages(width: int) -> nn.Sequential:
    last = torch.cuda.device_count() - 1
    return nn.Sequential(nn.Linear(width, width).to(0), nn.Linear(width, width).to(last))


def _time(step: Callable[[], None]) -> float:
    times = []
    for _ in range(20):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[5:]) * 1e6


def run(width: int) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds of a forward and backward per micro-batch: the Pipe's, the loop's."""
    import weft

    os.environ.setdefault("WEFT_LOG_LEVEL", "error")
    weft.init_rpc("alone", world_size=1)
    model = _stages(width)
    pipe = weft.Pipe(model, chunks=CHUNKS, checkpoint="never")
    inputs = torch.randn(CHUNKS * 4, width, device="cuda:0")

    def piped() -> None:
        pipe(inputs).local_value().sum().backward()

    def looped() -> None:
        outputs = []
        for part in inputs.chunk(CHUNKS):
            value = part
            for stage in model:
                value = stage(value.to(next(stage.parameters()).device))
            outputs.append(value)
        torch.cat(outputs).sum().backward()

    name = f"forward and backward of {width} wide, per micro-batch us"
    found = {name: _time(piped) / CHUNKS}, {name: _time(looped) / CHUNKS}
    import torch.distributed.rpc as rpc

    rpc.shutdown()
    return found
