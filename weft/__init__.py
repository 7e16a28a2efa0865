"""Weft: a maintained, fast and authenticated RPC backend and process group for PyTorch.

Importing this package registers the RPC backend ``WEFT`` and the process group ``weft``::

    import torch.distributed as dist
    import torch.distributed.rpc as rpc
    import weft

    dist.init_process_group("weft", rank=0, world_size=2)
    rpc.init_rpc("worker0", backend=rpc.BackendType.WEFT, rank=0, world_size=2)

Importing starts no thread and opens no socket. See ``docs/`` for the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from weft import _native  # first: it loads libweft.so and weft._C after torch
from weft._observe.flight import dump_flight_record
from weft._observe.group import stacks
from weft._observe.metrics import Metrics, metrics
from weft._observe.prometheus import metrics_text
from weft._observe.waits import Waiting, debug_info, who_waits
from weft._torch import registration as _registration
from weft._torch.process_group import ProcessGroupOptions
from weft._torch.request_policy import register_function, registered_functions
from weft._version import __version__
from weft.calling import call, call_async, call_remote, wait_published
from weft.data_parallel import ddp_hook
from weft.deadlines import cancelled, deadline
from weft.errors import RemoteError
from weft.memory import empty, empty_like, snapshot
from weft.options import RpcBackendOptions
from weft.publishing import Batch, PublishedInfo, publish, published, unpublish
from weft.remote_module import RemoteModule
from weft.rpc import init_rpc, wait_all_workers
from weft.rref import RRefId, RRefInfo, rref_report

if TYPE_CHECKING:
    from weft._observe.trace import trace
    from weft.pipe import Pipe, WithDevice

__all__ = [
    "Batch",
    "Metrics",
    "Pipe",
    "ProcessGroupOptions",
    "PublishedInfo",
    "RRefId",
    "RRefInfo",
    "RemoteError",
    "RemoteModule",
    "RpcBackendOptions",
    "Waiting",
    "WithDevice",
    "__version__",
    "call",
    "call_async",
    "call_remote",
    "cancelled",
    "cmake_prefix_path",
    "ddp_hook",
    "deadline",
    "debug_info",
    "dump_flight_record",
    "empty",
    "empty_like",
    "init_rpc",
    "library_path",
    "metrics",
    "metrics_text",
    "publish",
    "published",
    "register_function",
    "registered_functions",
    "rref_report",
    "snapshot",
    "stacks",
    "trace",
    "unpublish",
    "wait_all_workers",
    "wait_published",
    "who_waits",
]

library_path = _native.library_path
cmake_prefix_path = _native.cmake_prefix_path


def __getattr__(name: str) -> object:
    """Pipelines and traces are imported when they are asked for."""
    if name in ("Pipe", "WithDevice", "pipe"):
        pipe = importlib.import_module("weft.pipe")
        return pipe if name == "pipe" else getattr(pipe, name)
    if name == "trace":
        from weft._observe.trace import trace

        return trace
    raise AttributeError(f"module 'weft' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "pipe"})


try:
    _registration.install()
except ValueError as error:
    _native.tell_the_doctor(str(error))
    raise
