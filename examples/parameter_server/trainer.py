"""A trainer: computes gradients on its part of the digits, and gets the weights back for them."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.nn import functional

import weft
from examples.digits import data
from examples.parameter_server.server import make_model

BATCH = 32
PATIENCE = 60.0  # seconds without a server


def push(trainer: int, step: int, gradients: list[Tensor]) -> list[Tensor]:
    """The weights after these gradients. While the server is lost, asks until it is there again."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return weft.call("server/push", trainer, step, gradients, timeout=10)
        except RuntimeError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def run(trainer: int, trainers: int, steps: int, port: int) -> None:
    """All steps of one trainer."""
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    weft.init_rpc(f"trainer{trainer}", rank=2 + trainer, init_method=f"tcp://127.0.0.1:{port}")
    digits = data.load()
    chosen, _ = data.split(digits.labels, seed=0)
    mine = digits.take(data.shard(chosen, trainer, trainers))
    model = make_model()
    weights = push(trainer, -1, [])
    for step in range(steps):
        generator = torch.Generator().manual_seed(trainer * steps + step)
        batch = mine.take(torch.randint(len(mine), (BATCH,), generator=generator))
        with torch.no_grad():
            for parameter, weight in zip(model.parameters(), weights, strict=True):
                parameter.copy_(weight)
        model.zero_grad()
        functional.cross_entropy(model(batch.images), batch.labels).backward()
        weights = push(trainer, step, [parameter.grad for parameter in model.parameters()])
        store.add("steps", 1)
    rpc.shutdown()
