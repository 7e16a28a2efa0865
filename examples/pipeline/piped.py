"""The model as a pipeline: where to cut it, and what a Pipe needs around it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch.distributed.rpc as rpc
from torch import Tensor, nn

import weft
from examples.pipeline.config import Config
from weft.pipe.balance import balance_by_time, place


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """An RPC group of this process only: a Pipe answers with an RRef, which needs one."""
    with tempfile.TemporaryDirectory() as folder:
        options = weft.RpcBackendOptions(init_method=f"file://{Path(folder, 'group')}")
        kind = rpc.backend_registry.BackendType.WEFT
        rpc.init_rpc("trainer", kind, rank=0, world_size=1, rpc_backend_options=options)
        try:
            yield
        finally:
            rpc.shutdown()


def pipe(model: nn.Sequential, sample: Tensor, settings: Config) -> tuple[weft.Pipe, list[int]]:
    """Cuts the model where its parts take equally long; returns it and the layers per part."""
    balance = balance_by_time(settings.partitions, model, sample.chunk(settings.chunks)[0])
    parts = place(model, balance, ["cpu"] * settings.partitions)
    return weft.Pipe(parts, settings.chunks, settings.checkpoint), balance
