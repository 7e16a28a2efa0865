"""Weft: a maintained, fast and authenticated RPC backend for PyTorch.

Importing this package registers the RPC backend ``WEFT``::

    import torch.distributed.rpc as rpc
    import weft

    rpc.init_rpc("worker0", backend=rpc.BackendType.WEFT, rank=0, world_size=2)

Importing starts no thread and opens no socket. See ``docs/`` for the rest.
"""

from __future__ import annotations

from weft import (
    _native,  # loads libweft.so and weft._C after torch
    _registration,
)
from weft._registered import register_function, registered_functions
from weft._version import __version__
from weft.options import RpcBackendOptions
from weft.publishing import (
    Batch,
    PublishedInfo,
    call,
    call_async,
    call_remote,
    publish,
    published,
    unpublish,
)
from weft.remote_module import RemoteModule
from weft.rpc import init_rpc, wait_all_workers
from weft.rref import RRefId, RRefInfo, rref_report

__all__ = [
    "Batch",
    "PublishedInfo",
    "RRefId",
    "RRefInfo",
    "RemoteModule",
    "RpcBackendOptions",
    "__version__",
    "call",
    "call_async",
    "call_remote",
    "cmake_prefix_path",
    "init_rpc",
    "library_path",
    "publish",
    "published",
    "register_function",
    "registered_functions",
    "rref_report",
    "unpublish",
    "wait_all_workers",
]

library_path = _native.library_path
cmake_prefix_path = _native.cmake_prefix_path

_registration.install()
