"""A rank in Python: ``python -m examples.cpp_collectives.worker model.pt``, started as torchrun starts it."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import weft  # noqa: F401 - registers the backend and torch.ops.weft


def main() -> None:
    """Joins the group of MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, and runs the model."""
    dist.init_process_group("weft")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = torch.jit.load(sys.argv[1])
    x = torch.arange(4.0).reshape(4, 1) + 10 * rank  # other rows on each rank
    x.requires_grad_()
    y = model(x)
    total = torch.ops.weft.all_reduce(y.detach().sum(), "sum", "0").item()
    y.square().mul(torch.arange(4.0)[:, None]).sum().backward()  # through the others, too
    print(
        f"Python rank {rank} of {size}: rows from {y[0].item():.3f} to {y[3].item():.3f}, "
        f"everybody's add up to {abs(total):.3f}, gradient {x.grad.norm().item():.3f}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
