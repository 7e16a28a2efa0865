"""Registers the process-group backend ``weft`` with ``torch.distributed``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from weft import _C, _native, _observe
from weft._observe import logs

BACKEND = "weft"


@dataclasses.dataclass
class ProcessGroupOptions:
    """Options of a process group, for ``init_process_group`` and ``new_group``.

    ::

        dist.init_process_group("weft", pg_options=weft.ProcessGroupOptions(interface="lo"))

    Attributes:
        interface: interface name or numeric address for traffic between hosts; by default
            ``WEFT_SOCKET_IFNAME``, else the interface that reaches the Store's host.
        nccl: ``ProcessGroupNCCL.Options`` for the NCCL backend that serves CUDA tensors; its
            timeout, name and ranks are the group's.
        staging_bytes: device memory that each rank takes for collectives of ranks that share a GPU,
            which do not go through NCCL; the same on all ranks.
    """

    interface: str = ""
    nccl: Any = None
    staging_bytes: int = 32 << 20


def _make_nccl(
    options: ProcessGroupOptions,
    device: str,
    store: dist.Store,
    rank: int,
    size: int,
    timeout: timedelta,
    group_name: str,
    global_ranks: list[int],
) -> Any:
    if not dist.is_nccl_available():
        raise RuntimeError(
            "weft: CUDA tensors go through NCCL, and this PyTorch was built without it"
        )
    nccl = options.nccl if options.nccl is not None else dist.ProcessGroupNCCL.Options()
    nccl._timeout = timeout
    nccl.global_ranks_in_group = global_ranks
    nccl.group_name = group_name
    backend = dist.ProcessGroupNCCL(store, rank, size, nccl)
    backend._set_sequence_number_for_group()
    return backend


def _make_cuda(
    options: ProcessGroupOptions,
    device: str,
    store: dist.Store,
    rank: int,
    size: int,
    timeout: timedelta,
    *names: Any,
) -> Any:
    """NCCL, or what serves ranks that share a device. All ranks decide alike: they tell each other."""
    if _native.load_cuda():
        shared = _C.make_shared_device_backend(
            device, store, rank, size, timeout, options.interface, options.staging_bytes
        )
        if shared is not None:
            return shared
    return _make_nccl(options, device, store, rank, size, timeout, *names)


# The backends for tensors that are not on the CPU, by type of device.
_DELEGATES: dict[str, Callable[..., Any]] = {"cuda": _make_cuda}


def _make_delegate(options: ProcessGroupOptions, device: str, *place: Any) -> Any:
    """The backend for a type of device (``DelegateSpec`` in C++); None when there is none."""
    make = _DELEGATES.get(torch.device(device).type)
    return None if make is None else make(options, device, *place)


def _create(
    options: dist._DistributedBackendOptions, pg_options: ProcessGroupOptions | None
) -> _C.WeftBackend:
    if torch.cuda.device_count() == 0:
        # torch asks this table for a device to gather on (ShardedTensor). Only here, because counting
        # devices takes time that an import should not.
        dist.Backend.backend_capability[BACKEND] = ["cpu"]
    _observe.start()
    if pg_options is None:
        pg_options = ProcessGroupOptions()
    if not isinstance(pg_options, ProcessGroupOptions):
        raise TypeError(
            f"the backend weft takes weft.ProcessGroupOptions as pg_options, got {pg_options!r}"
        )
    made = _C.WeftBackend(
        options.store,
        options.group_rank,
        options.group_size,
        options.timeout,
        interface=pg_options.interface,
        group_name=options.group_id,
        global_ranks=list(options.global_ranks_in_group),
        make_delegate=functools.partial(_make_delegate, pg_options),
    )
    logs.announce_group(options.group_id, options.group_rank, options.group_size, made.path)
    return made


def register() -> None:
    """Registers the backend; a second call changes nothing."""
    if BACKEND not in dist.Backend.backend_list:
        # A list: register_backend would take a plain string by its letters.
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu", "cuda"])
