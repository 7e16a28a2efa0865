"""What the workers of a fleet run besides their workloads: joining, looking at themselves, limits."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

SILENCE = 5.0  # a worker that gets no CPU time for less on a busy machine is not lost
OPTIONS = {"heartbeat_interval": 0.3, "peer_timeout": SILENCE, "reconnect_timeout": SILENCE}
_libc = ctypes.CDLL(None)
_before = ctypes.create_string_buffer(128)  # room for a pthread_attr_t


def join(rank: int, world: int, keeper: int, network: int, **options: Any) -> None:
    """A member of the RPC group whose TCPStore is at the port `keeper`; publishes `chaos`."""
    import torch
    import torch.distributed.rpc as rpc
    from proxied_store import register

    import weft

    gc.freeze()  # what is imported by now is not searched at each collection
    register()
    torch.set_num_threads(1)
    made = weft.RpcBackendOptions(
        init_method=f"chaos://127.0.0.1:{keeper}/?network={network}",
        interface="127.0.0.1",
        rpc_timeout=30,
        **{**OPTIONS, **options},
    )
    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.BackendType.WEFT,
        rank=rank,
        world_size=world,
        rpc_backend_options=made,
    )
    weft.publish("chaos", torch.jit.script(_add_one))


def _add_one(x):  # TorchScript takes an argument without a type for a tensor
    return x + 1


def resources() -> dict[str, int]:
    """Descriptors, threads, resident bytes and contexts of distributed autograd of this process, with
    what it can give back given back.
    """
    from torch.distributed.autograd import _get_debug_info

    gc.collect()
    contexts = 0
    with contextlib.suppress(RuntimeError):  # it is none of an RPC group
        contexts = int(_get_debug_info()["num_autograd_contexts"])
    _libc.malloc_trim(0)
    status = Path("/proc/self/statm").read_text().split()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "resident": int(status[1]) * os.sysconf("SC_PAGESIZE"),
        "contexts": contexts,
    }


def held_for_others() -> list[str]:
    """What this worker keeps for operations: values to which others refer, stages of pipelines."""
    import torch.distributed.rpc as rpc

    import weft
    from weft.pipe._workers.part import parts

    gc.collect()
    me = rpc.get_worker_info().name
    values = [f"{row.type} held by {row.holders}" for row in weft.rref_report() if row.owner == me]
    stages = [f"stages of a Pipe of {part.driver}" for part in list(parts.values())]
    return values + stages


def reaches(peer: str) -> str:
    """ "", or why a call to this peer fails."""
    import torch
    import torch.distributed.rpc as rpc

    try:
        rpc.rpc_sync(peer, torch.add, args=(torch.ones(1), 1), timeout=10)
    except RuntimeError as error:
        return str(error)
    return ""


def no_more_threads() -> None:
    """Stacks larger than all addresses: as where the system's limit is reached, for root as well."""
    attributes = ctypes.create_string_buffer(128)
    _libc.pthread_getattr_default_np(_before)
    _libc.pthread_attr_init(attributes)
    _libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 47))
    _libc.pthread_setattr_default_np(attributes)


def threads_again() -> None:
    _libc.pthread_setattr_default_np(_before)


def try_to_join(rank: int, world: int, keeper: int, **options: Any) -> tuple[str, float]:
    """Joins: its error, and how long it took."""
    began = time.monotonic()
    try:
        join(rank, world, keeper, 0, **options)
    except (RuntimeError, ValueError) as error:
        return str(error), time.monotonic() - began
    return "", time.monotonic() - began


def wall_clock() -> float:
    return time.time()


def hang(seconds: float = 3600) -> None:
    threading.Event().wait(seconds)
