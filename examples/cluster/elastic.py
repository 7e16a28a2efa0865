"""Data-parallel training under torchrun: a rank that is killed comes back, and training goes on.

torchrun --nproc-per-node=2 --max-restarts=3 -m examples.cluster.elastic --checkpoint /tmp/model.pt

torchrun starts all ranks again when one has ended; they find the last checkpoint and continue.
"""

from __future__ import annotations

import argparse
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import weft  # noqa: F401  registers the backend
from examples.digits import data

BATCH = 128  # images of a step, divided among the ranks that there are
TIMEOUT = timedelta(seconds=60)


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Puts a whole checkpoint in the place of the former one: a rank killed here leaves that one."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step at which to go on. All ranks must see the file, or all must see none."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def train(path: Path, steps: int, every: int, kill_at: int) -> float:
    """Up to ``steps`` in all lives together; the share of the held-out digits that are right."""
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    begin = load(path, model, optimizer)
    dist.barrier()  # rank 0 writes the next one only when all have read this one
    if rank == 0:
        print(f"life {life}: {size} ranks begin at step {begin}", flush=True)

    parallel = DistributedDataParallel(model)
    digits = data.load()
    mine, held_out = data.split(digits.labels, seed=0)
    for step in range(begin, steps):
        if rank == 1 and life == 0 and step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        # Every step draws the same batch in every life, however many ranks share it.
        generator = torch.Generator().manual_seed(step)
        chosen = mine[torch.randint(len(mine), (BATCH,), generator=generator)]
        batch = digits.take(chosen[rank::size])
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(batch.images), batch.labels).backward()
        optimizer.step()
        if rank == 0 and (step + 1) % every == 0:
            save(path, step + 1, model, optimizer)
    test = digits.take(held_out)
    return (model(test.images).argmax(1) == test.labels).float().mean().item()


def main() -> None:
    """One rank; torchrun starts them and says who is who."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, required=True, help="a file that all ranks see")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--kill-at", type=int, default=-1, help="step at which rank 1 dies, once")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("weft", timeout=TIMEOUT)
    accuracy = train(args.checkpoint, args.steps, args.every, args.kill_at)
    if dist.get_rank() == 0:
        print(f"{args.steps} steps: {accuracy:.1%} of the held-out digits are right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
