"""Patches that make Weft the default, where the user asks for it.

torch names TENSORPIPE and gloo in its code; it has no setting for either.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.distributed.rpc import backend_registry

from weft._torch.log import inform
from weft._torch.patches.groups import C10D
from weft._torch.patches.patch import Function, patch
from weft._torch.patches.startup import INIT_RPC, INIT_RPC_PARAMETERS
from weft.options import RpcBackendOptions


@patch(
    INIT_RPC,
    INIT_RPC_PARAMETERS,
    without="Weft cannot be the default of init_rpc: unset WEFT_AS_DEFAULT.",
    refuses=lambda: True,
)
def init_rpc(
    upstream: Function,
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Gives Weft to a program that names no backend or TENSORPIPE, with its options translated."""
    asked = getattr(backend, "name", None)
    if backend is None or asked == "TENSORPIPE":
        backend = backend_registry.BackendType["WEFT"]
        rpc_backend_options = translate_options(rpc_backend_options)
    upstream(name, backend, rank, world_size, rpc_backend_options)
    if asked == "TENSORPIPE":
        inform("init_rpc asked for TENSORPIPE: Weft is the default and serves it")


def translate_options(options: Any) -> Any:
    """``TensorPipeRpcBackendOptions`` as Weft's; other options as they are."""
    if not isinstance(options, rpc.TensorPipeRpcBackendOptions):
        return options
    return RpcBackendOptions(
        num_worker_threads=options.num_worker_threads,
        rpc_timeout=options.rpc_timeout,
        init_method=options.init_method,
        device_maps=options.device_maps,
        devices=options.devices,
    )


def _weft_for_gloo(upstream: Function, *args: Any, **kwargs: Any) -> Any:
    """Reads ``gloo`` as weft: ``cpu:gloo,cuda:nccl`` becomes ``cpu:weft,cuda:nccl``.

    A default group of no named backend is weft's. torch would say "gloo" in some places of it, which
    ``DistributedDataParallel`` then misses. (Another group without one takes the default group's.)
    """
    place = list(inspect.signature(upstream).parameters).index("backend")
    given = args[place] if len(args) > place else kwargs.get("backend")
    backend = given and re.sub(r"\bgloo\b", "weft", str(given).lower())
    if upstream.__name__ == "init_process_group":
        backend = backend or "weft"
    if len(args) > place:
        args = (*args[:place], backend, *args[place + 1 :])
    else:
        kwargs["backend"] = backend
    return upstream(*args, **kwargs)


def _of_group(name: str, parameters: str) -> Any:
    return patch(
        f"{C10D}:{name}",
        parameters,
        without="Weft cannot stand for gloo: unset WEFT_AS_PROCESS_GROUP.",
        refuses=lambda: True,
        aliases=(f"torch.distributed:{name}", f"torch.distributed.device_mesh:{name}"),
    )(_weft_for_gloo)


init_process_group = _of_group("init_process_group", "(backend=None, ...)")
new_group = _of_group("new_group", "(ranks=None, timeout=None, backend=None, ...)")


def make_default() -> None:
    """Makes Weft what ``init_rpc`` uses."""
    init_rpc.install()


def make_default_process_group() -> None:
    """Makes weft what ``gloo``, or no backend for CPU tensors, means for process groups."""
    init_process_group.install()
    new_group.install()
    dist.Backend.default_device_backend_map["cpu"] = "weft"
