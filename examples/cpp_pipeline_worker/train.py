"""The driver of a pipeline whose stages train in C++ programs without Python: worker.cpp."""

from __future__ import annotations

import math
import os

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

import weft


def spirals(rows: int) -> tuple[Tensor, Tensor]:
    """Points of two spirals, and which one each is of."""
    kinds = torch.arange(rows) % 2
    turns = torch.rand(rows) * 3
    angles = turns + kinds * math.pi
    points = torch.stack([turns * angles.cos(), turns * angles.sin()], 1)
    return points + 0.05 * torch.randn(rows, 2), kinds


def stages() -> list[torch.jit.ScriptModule]:
    """Three scripted ones."""
    return [
        torch.jit.script(nn.Sequential(nn.Linear(2, 32), nn.ReLU())),
        torch.jit.script(nn.Sequential(nn.Linear(32, 32), nn.ReLU())),
        torch.jit.script(nn.Linear(32, 2)),
    ]


def main() -> None:
    """Trains with the first stage here, and the others at the other workers in turn."""
    torch.manual_seed(0)
    size = int(os.environ["WORLD_SIZE"])
    weft.init_rpc("driver", rank=int(os.environ["RANK"]), world_size=size)
    first, *others = stages()
    layers = [
        weft.WithDevice(stage, f"worker{1 + number % (size - 1)}/cpu")
        for number, stage in enumerate(others)
    ]
    pipe = weft.Pipe(nn.Sequential(first, *layers), chunks=4, schedule="1f1b")
    optimizer = pipe.optimizer(torch.optim.Adam, lr=0.01)
    loss_of = torch.jit.script(nn.CrossEntropyLoss())
    for step in range(301):
        optimizer.zero_grad()
        loss = pipe.step(*spirals(64), loss=loss_of)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    pipe.eval()
    points, kinds = spirals(1000)
    right = (pipe(points).to_here().argmax(1) == kinds).float().mean()
    print(f"{right:.0%} of other points are right")
    pipe.close()
    rpc.shutdown()


if __name__ == "__main__":
    main()
