"""A sparse part on a server over RPC, a dense part in DistributedDataParallel: PyTorch's hybrid.

torchrun --nproc-per-node=3 -m examples.ddp_rpc.train

Rank 0 serves an embedding; the others train on the digits that scikit-learn ships. The embedding's
gradients go to the server through distributed autograd, the dense part's are averaged by the process
group of the trainers.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.distributed.optim import DistributedOptimizer
from torch.nn.parallel import DistributedDataParallel

import weft
from examples.digits import data

PIXELS, GREYS, WIDTH = 64, 17, 32  # an image is 64 words out of 64 x 17
BATCH = 32  # of one trainer

_trainers: dist.ProcessGroup | None = None  # of this process, if it is one of them


def words(images: Tensor) -> Tensor:
    """Each pixel and how dark it is, as one number: a row of the embedding."""
    greys = (images.flatten(1) * (GREYS - 1)).round().long()
    return greys + GREYS * torch.arange(PIXELS)


class Hybrid(nn.Module):
    """The embedding is at the server, the same for all; the classifier is this trainer's copy."""

    def __init__(self, embedding: rpc.RRef[nn.Module]) -> None:
        super().__init__()
        self.embedding = weft.RemoteModule.init_from_module_rref("server/cpu", embedding)
        torch.manual_seed(1)
        dense = nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 10))
        self.classifier = DistributedDataParallel(dense, process_group=_trainers)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.embedding(words(images)))


def train(trainer: int, trainers: int, epochs: int, embedding: rpc.RRef[nn.Module]) -> float:
    """What a trainer does, when the server calls it; the share of the held-out digits that are right."""
    digits = data.load()
    chosen, held_out = data.split(digits.labels, seed=0)
    mine = digits.take(data.shard(chosen, trainer, trainers))
    model = Hybrid(embedding)
    remote = DistributedOptimizer(torch.optim.Adam, model.embedding.remote_parameters(), lr=0.01)
    local = torch.optim.Adam(model.classifier.parameters(), lr=0.01)
    for epoch in range(epochs):
        generator = torch.Generator().manual_seed(epoch)
        for part in torch.randperm(len(mine), generator=generator).split(BATCH):
            batch = mine.take(part)
            with dist_autograd.context() as context:
                loss = nn.functional.cross_entropy(model(batch.images), batch.labels)
                dist_autograd.backward(context, [loss])  # DDP averages in here
                remote.step(context)
                found = dist_autograd.get_gradients(context)
                for parameter in model.classifier.parameters():
                    parameter.grad = found[parameter]
                local.step()
    test = digits.take(held_out)
    with torch.no_grad():
        return (model(test.images).argmax(1) == test.labels).float().mean().item()


def drive(trainers: int, epochs: int) -> list[float]:
    """What the server does: makes the embedding, and lets all trainers train."""
    torch.manual_seed(0)
    embedding = rpc.RRef(nn.EmbeddingBag(PIXELS * GREYS, WIDTH, mode="sum"))
    calls = [
        rpc.rpc_async(f"trainer{i}", train, (i, trainers, epochs, embedding), timeout=0)
        for i in range(trainers)
    ]
    return [call.wait() for call in calls]


def main() -> None:
    """One process; torchrun starts them and says who is who."""
    global _trainers
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    name = f"trainer{rank - 1}" if rank else "server"
    # All make the groups; the trainers need theirs before they are called.
    dist.init_process_group("weft")
    _trainers = dist.new_group(range(1, size))
    weft.init_rpc(name, rank=rank, world_size=size)
    if rank == 0:
        accuracies = drive(size - 1, args.epochs)
        print(f"{size - 1} trainers: {min(accuracies):.1%} of the held-out digits are right")
    rpc.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
