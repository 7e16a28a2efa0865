"""How each side makes a pipeline. Imports what it needs when it is asked: peers have no Weft."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch.distributed.rpc as rpc
from torch import Tensor, nn

Run = Callable[[Tensor], Tensor]


def _init_method() -> str:
    return f"file://{Path(tempfile.mkdtemp(prefix='bench-pipe-'), 'group')}"


class Weft:
    """This project's Pipe."""

    def __init__(self) -> None:
        import weft

        self._pipe = weft.Pipe
        options = weft.RpcBackendOptions(init_method=_init_method())
        kind = rpc.backend_registry.BackendType.WEFT
        rpc.init_rpc("bench", kind, rank=0, world_size=1, rpc_backend_options=options)

    def pipe(self, layers: list[nn.Module], chunks: int, mode: str) -> Run:
        """A Pipe of one partition per layer."""
        pipe = self._pipe(nn.Sequential(*layers), chunks=chunks, checkpoint=mode)
        return lambda batch: pipe(batch).local_value()


class Torch:
    """torch.distributed.pipeline.sync.Pipe, of a torch that has it (up to 2.3)."""

    def __init__(self) -> None:
        warnings.simplefilter("ignore")
        from torch.distributed.pipeline.sync import Pipe

        self._pipe = Pipe
        options = rpc.TensorPipeRpcBackendOptions(init_method=_init_method())
        rpc.init_rpc("bench", rank=0, world_size=1, rpc_backend_options=options)

    def pipe(self, layers: list[nn.Module], chunks: int, mode: str) -> Run:
        """A Pipe of one partition per layer."""
        pipe = self._pipe(nn.Sequential(*layers), chunks=chunks, checkpoint=mode)
        return lambda batch: pipe(batch).local_value()


SIDES = {"weft": Weft, "torch": Torch}
