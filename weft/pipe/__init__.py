"""Pipelines: an ``nn.Sequential`` cut into stages that work on micro-batches at the same time.

::

    import weft

    weft.init_rpc("trainer", rank=0, world_size=1)
    model = weft.Pipe(nn.Sequential(first, second), chunks=8)
    output = model(batch).local_value()

It has the API of ``torch.distributed.pipeline.sync`` (PyTorch up to 2.3). See ``docs/guide/pipe.md``.
"""

from __future__ import annotations

from weft.pipe import skip
from weft.pipe._batchnorm import DeferredBatchNorm
from weft.pipe._driver import worker_pipe as _worker_pipe  # noqa: F401  Pipe takes a schedule by it
from weft.pipe._inputs import NoChunk
from weft.pipe._partition import WithDevice
from weft.pipe._pipe import Pipe, is_checkpointing, is_recomputing
from weft.pipe.balance import balance_by_size, balance_by_time, place

__all__ = [
    "DeferredBatchNorm",
    "NoChunk",
    "Pipe",
    "WithDevice",
    "balance_by_size",
    "balance_by_time",
    "is_checkpointing",
    "is_recomputing",
    "place",
    "skip",
]
