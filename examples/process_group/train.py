"""Data-parallel training on a Weft process group: each rank has its own data, all have one model.

torchrun --nproc-per-node=2 -m examples.process_group.train
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weft  # noqa: F401  registers the backend


def train(steps: int) -> tuple[float, float]:
    """Fits a line through points of which each rank sees other ones; the first and last loss."""
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(64, 4)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # the gradients are averaged over the ranks here
        optimizer.step()
        average = loss.detach()
        dist.all_reduce(average, dist.ReduceOp.AVG)
        losses.append(average.item())
    return losses[0], losses[-1]


def main() -> None:
    """One rank; torchrun starts them and says who is who."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="weft", help="or gloo")
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(args.backend)
    first, last = train(args.steps)
    if dist.get_rank() == 0:
        print(
            f"{dist.get_world_size()} ranks over {dist.get_backend()}: loss {first:.3f} -> {last:.3f}"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
