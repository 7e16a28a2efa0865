"""all_reduce of ranks that share a GPU, beside what one writes without it: through gloo by hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
SIDES = ("weft", "gloo")


def _through_gloo(tensor: torch.Tensor, group: Any) -> None:
    host = tensor.cpu()
    dist.all_reduce(host, group=group)
    tensor.copy_(host)


def _time(call: Callable[[], object], count: int) -> float:
    times = []
    for _ in range(count):
        dist.barrier()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def rank(number: int, ranks: int, port: int, rounds: int, largest: int, answers: Any) -> None:
    """One rank, on device 0 as all others; answers with figures by side and round."""
    import weft  # noqa: F401  registers the backend

    torch.cuda.set_device(0)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("weft", init_method=address, rank=number, world_size=ranks)
    gloo = dist.new_group(backend="gloo")
    found: dict[str, list[dict[str, float]]] = {side: [{} for _ in range(rounds)] for side in SIDES}
    for name, size in SIZES.items():
        if size > largest:
            continue
        tensor = torch.ones(size // 4, device="cuda:0")
        calls = {
            "weft": lambda tensor=tensor: dist.all_reduce(tensor),
            "gloo": lambda tensor=tensor: _through_gloo(tensor, gloo),
        }
        for turn in range(rounds):
            for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
                calls[side]()
                found[side][turn][f"all_reduce of {ranks} on one GPU, {name} us"] = _time(
                    calls[side], 20 if size < 1 << 24 else 5
                )
    answers.put(found)
    dist.barrier()
    dist.destroy_process_group()
