"""Data-parallel training without DDP: all gradients lie in one tensor that the group allocated.

The ranks of a host add up such a tensor where it lies: no copy into shared memory, none out of it.

torchrun --nproc-per-node=2 -m examples.process_group.one_buffer
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn

import weft  # noqa: F401  registers the backend


def allocate(count: int) -> torch.Tensor:
    """Zeros that the group's backend allocates, where it can; ordinary ones elsewhere."""
    device = torch.device("cpu")
    backend = dist.group.WORLD._get_backend(device)
    if not backend.supports_tensor_alloc(device):
        return torch.zeros(count)
    return backend.allocate_tensor(count, dtype=torch.float32, device=device).zero_()


def gradients_in_one(model: nn.Module) -> torch.Tensor:
    """Makes each parameter's gradient a view of one tensor, and returns that."""
    parameters = list(model.parameters())
    whole = allocate(sum(parameter.numel() for parameter in parameters))
    pieces = whole.split([parameter.numel() for parameter in parameters])
    for parameter, piece in zip(parameters, pieces, strict=True):
        parameter.grad = piece.view_as(parameter)
    return whole


def train(steps: int) -> tuple[float, float]:
    """The same model on each rank, other data; the first and last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    gradients = gradients_in_one(model)
    torch.manual_seed(1 + dist.get_rank())
    losses = []
    for _ in range(steps):
        inputs = torch.randn(64, 64)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True) / 8)
        gradients.zero_()
        loss.backward()
        dist.all_reduce(gradients, dist.ReduceOp.AVG)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
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
