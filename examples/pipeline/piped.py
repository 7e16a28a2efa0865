"""The model as a pipeline: where to cut it, and what a Pipe needs around it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed.rpc as rpc
from torch import Tensor, nn

import weft
from examples.pipeline.config import Config
from weft.pipe.balance import balance_by_time, place


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """An RPC group of this process only: a Pipe answers with an RRef, which needs one."""
    weft.init_rpc("trainer", world_size=1)
    try:
        yield
    finally:
        rpc.shutdown()


def pipe(model: nn.Sequential, sample: Tensor, settings: Config) -> tuple[weft.Pipe, list[int]]:
    """Cuts the model where its parts take equally long; returns it and the layers per part."""
    balance = balance_by_time(settings.partitions, model, sample.chunk(settings.chunks)[0])
    parts = place(model, balance, ["cpu"] * settings.partitions)
    return weft.Pipe(parts, settings.chunks, settings.checkpoint), balance
