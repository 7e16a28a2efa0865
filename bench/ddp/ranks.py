"""The ranks: processes that train one model in a Weft group and one in a Gloo group, in turn."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.collectives.ranks import SIDES
from bench.limits import pin

_STEPS = 3  # of one side in one round
WIDTH = 2560


def model() -> nn.Module:
    return nn.Sequential(
        *(layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())),
        nn.Linear(WIDTH, WIDTH),
    )


def _step(trained: nn.Module, inputs: torch.Tensor) -> float:
    start = time.perf_counter()
    trained(inputs).sum().backward()
    trained.zero_grad()
    return time.perf_counter() - start


def rank(number: int, ranks: int, port: int, rounds: int, pinned: bool, answers: Any) -> None:
    """One rank: puts its figures by side and round, in milliseconds, into ``answers``."""
    cores = sorted(os.sched_getaffinity(0))
    pin(cores[number % len(cores)] if pinned else None)
    torch.set_num_threads(1)
    import weft  # registers the backend

    dist.init_process_group(
        "weft", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=ranks
    )
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    plain, inputs = model(), torch.randn(8, WIDTH)
    models = {side: DistributedDataParallel(model(), process_group=groups[side]) for side in SIDES}
    hooked = DistributedDataParallel(model(), gradient_as_bucket_view=True)
    hooked.register_comm_hook(None, weft.ddp_hook)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in (*SIDES, "alone")}
    for turn in range(-1, rounds):  # the first round only warms up
        dist.barrier()
        alone = statistics.median(_step(plain, inputs) for _ in range(_STEPS))
        if turn >= 0:
            found["alone"].append({"step ms": alone * 1e3})
        for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
            dist.barrier()
            times = [_step(models[side], inputs) for _ in range(_STEPS)]
            figures = {"DDP step ms": statistics.median(times) * 1e3}
            if side == "weft":
                dist.barrier()
                times = [_step(hooked, inputs) for _ in range(_STEPS)]
                figures["DDP with weft.ddp_hook, step ms"] = statistics.median(times) * 1e3
            if turn >= 0:
                found[side].append(figures)
    answers.put(found)
    dist.barrier()
    dist.destroy_process_group()
