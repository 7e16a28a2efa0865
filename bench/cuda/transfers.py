"""RPC with device maps: a tensor goes to the peer's device, and one of its size comes back."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import torch
import torch.distributed.rpc as rpc

SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20, "64 MiB": 1 << 26, "1 GiB": 1 << 30}
_BUDGET = 1.0  # seconds for one size
_PEER = "peer"


def give_back(tensor: torch.Tensor) -> torch.Tensor:
    """Runs at the peer; its result is another tensor, so both ways are used."""
    return tensor + 1


def _options(side: str, devices: int) -> Any:
    if side == "tensorpipe":
        options = rpc.TensorPipeRpcBackendOptions(rpc_timeout=120)
    else:
        import weft

        options = weft.RpcBackendOptions(rpc_timeout=120)
    options.set_device_map(_PEER, {0: devices - 1})
    return options


def _round_trip(tensor: torch.Tensor) -> float:
    start = time.perf_counter()
    rpc.rpc_sync(_PEER, give_back, args=(tensor,))
    torch.cuda.synchronize(0)
    return time.perf_counter() - start


def _measure(size: int) -> float:
    """Microseconds there and back, the median of as many as fit the budget."""
    tensor = torch.ones(size // 4, device="cuda:0")
    first = [_round_trip(tensor) for _ in range(3)]
    count = int(min(200, max(3, _BUDGET / min(first))))
    return statistics.median(_round_trip(tensor) for _ in range(count)) * 1e6


def rank(number: int, ranks: int, side: str, port: int, largest: int, answers: Any) -> None:
    """One of two processes; the caller answers with its figures by size."""
    import weft  # noqa: F401  registers the backend

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    devices = torch.cuda.device_count()
    backend = rpc.BackendType.WEFT if side == "weft" else rpc.BackendType.TENSORPIPE
    options = _options(side, devices) if number == 0 else None
    if number == 1:
        options = _options(side, 1)
        options.device_maps.clear()
        options.set_device_map("caller", {devices - 1: 0})
    rpc.init_rpc(
        "caller" if number == 0 else _PEER,
        backend=backend,
        rank=number,
        world_size=ranks,
        rpc_backend_options=options,
    )
    found = {}
    if number == 0:
        found = {
            f"rpc {name} there and back us": _measure(size)
            for name, size in SIZES.items()
            if size <= largest
        }
    answers.put(found)
    rpc.shutdown()
