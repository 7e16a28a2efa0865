"""All that differs between Weft and TensorPipe: how a worker joins, and what the agent counts."""

from __future__ import annotations

import re

import torch.distributed as dist
import torch.distributed.rpc as rpc

from examples.digits.config import TRAINERS, WORKERS

RPC_TIMEOUT = 60.0  # seconds
THREADS = 8


def join(backend: str, name: str, rank: int, world_size: int) -> None:
    """Joins the RPC group under this name; MASTER_ADDR and MASTER_PORT say where it meets."""
    if backend == "WEFT":
        import weft

        kind = rpc.backend_registry.BackendType.WEFT
        options = weft.RpcBackendOptions(num_worker_threads=THREADS, rpc_timeout=RPC_TIMEOUT)
    else:
        kind = rpc.backend_registry.BackendType.TENSORPIPE
        options = rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=THREADS, rpc_timeout=RPC_TIMEOUT
        )
    rpc.init_rpc(name, backend=kind, rank=rank, world_size=world_size, rpc_backend_options=options)


def join_process_group(backend: str) -> dist.ProcessGroup:
    """All workers form a process group as well, through the same store; returns the trainers' part.

    Every worker must call this: a group inside a group is made by all.
    """
    if backend == "WEFT":
        import weft  # noqa: F401  registers the backend
    dist.init_process_group("weft" if backend == "WEFT" else "gloo")
    return dist.new_group([WORKERS.index(name) for name in TRAINERS])


def bytes_by_peer() -> dict[str, tuple[int, int]]:
    """Bytes sent to and received from each peer, as the agent counts them.

    Empty with TensorPipe, which does not count.
    """
    info = rpc.api._get_current_rpc_agent().get_debug_info()
    counted: dict[str, list[int]] = {}
    for key, value in info.items():
        match = re.fullmatch(r"agent\.peer\.(.+)\.bytes_(sent|received)", key)
        if match:
            pair = counted.setdefault(match[1], [0, 0])
            pair[match[2] == "received"] = int(value)
    counted.pop(rpc.get_worker_info().name, None)  # what it told itself has moved nowhere
    return {peer: (sent, received) for peer, (sent, received) in counted.items()}
