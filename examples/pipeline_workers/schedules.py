"""Runs each schedule on four workers whose stages only wait, and draws what was measured.

    python -m weft.launch --workers 4 -m examples.pipeline_workers.schedules [--folder pictures]

Each worker waits 4 ms in the forward of a micro-batch, and as long for the gradients of its input and
of its parameters; under "interleaved" half of that in each of its two stages.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
from torch import nn

import weft
from examples.pipeline_workers.stages import Sum, Wait
from weft.pipe._workers.schedule import SCHEDULES

NAMES = ("worker1", "worker2", "worker3", "worker4")
CHUNKS, STEPS, SECONDS = 8, 5, 0.004


def draw(schedule: str, folder: Path) -> None:
    """Records some mini-batches, and saves the one of median time."""
    rounds = 2 if schedule == "interleaved" else 1
    stages = [
        weft.WithDevice(Wait(SECONDS / rounds), f"{name}/cpu")
        for _ in range(rounds)
        for name in NAMES
    ]
    pipe = weft.Pipe(nn.Sequential(*stages), CHUNKS, "never", schedule=schedule)
    inputs, targets = torch.ones(CHUNKS, 1), torch.zeros(CHUNKS)
    pipe.step(inputs, targets, loss=Sum())
    with pipe.record() as timeline:
        for _ in range(STEPS):
            pipe.step(inputs, targets, loss=Sum())
    path = timeline.save(folder / f"schedule-{schedule}.svg")
    figures = timeline.figures
    print(
        f"{schedule}: {figures.seconds * 1e3:.1f} ms, bubble {figures.bubble:.1%}, "
        f"on paper {figures.ideal_bubble:.1%}: {path}",
        flush=True,
    )
    pipe.close()


def main() -> None:
    """Draws all of them."""
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline_workers.schedules")
    parser.add_argument("--folder", type=Path, default=Path())
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    weft.init_rpc("driver", rank=0, world_size=len(NAMES) + 1)
    for schedule in SCHEDULES:
        draw(schedule, folder)
    rpc.shutdown()


if __name__ == "__main__":
    main()
