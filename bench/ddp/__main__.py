"""Entry: ``./dev bench ddp [--ranks 2] [--rounds 5]``: steps of a 25 M-parameter MLP under DDP."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.collectives.ranks import SIDES, free_port
from bench.rpc import report

_STEPS = 3  # of one side in one round


def _model() -> nn.Module:
    width = 2560
    return nn.Sequential(
        *(layer for _ in range(3) for layer in (nn.Linear(width, width), nn.ReLU())),
        nn.Linear(width, width),
    )


def _step(model: nn.Module, inputs: torch.Tensor) -> float:
    start = time.perf_counter()
    model(inputs).sum().backward()
    model.zero_grad()
    return time.perf_counter() - start


def _rank(rank: int, ranks: int, port: int, rounds: int, answers: Any) -> None:
    torch.set_num_threads(1)
    import weft  # noqa: F401  registers the backend

    dist.init_process_group(
        "weft", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    plain, inputs = _model(), torch.randn(8, 2560)
    models = {side: DistributedDataParallel(_model(), process_group=groups[side]) for side in SIDES}
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    alone = []
    for number in range(-1, rounds):  # the first round only warms up
        alone.append(statistics.median(_step(plain, inputs) for _ in range(_STEPS)) * 1e3)
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            dist.barrier()
            times = [_step(models[side], inputs) for _ in range(_STEPS)]
            if number >= 0:
                found[side].append({"DDP step ms": statistics.median(times) * 1e3})
    if rank == 0:
        answers.put((found, statistics.median(alone)))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Measures both backends in turn and prints the table."""
    parser = argparse.ArgumentParser(prog="./dev bench ddp", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    arguments = parser.parse_args()
    answers = multiprocessing.get_context("spawn").SimpleQueue()
    processes = multiprocessing.start_processes(
        _rank,
        (arguments.ranks, free_port(), arguments.rounds, answers),
        nprocs=arguments.ranks,
        join=False,
    )
    while answers.empty() and not processes.join(timeout=0.2):
        pass
    found, alone = answers.get()
    processes.join()
    rows = report.rows(found["weft"], found["gloo"])
    limits = {"the same step without DDP ms": alone, "load average": os.getloadavg()[0]}
    print(report.table(rows, "weft", "gloo", limits))
    report.write(arguments.out, rows, "weft", "gloo", limits, stem=f"ddp-{arguments.ranks}-ranks")


if __name__ == "__main__":
    main()
