"""The same as client.cpp, in Python: ``python -m examples.cpp_inference.client --threads 4``."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed.rpc as rpc

import weft


def _ask(requests: int, x: torch.Tensor) -> list[float]:
    times = []
    for _ in range(requests):
        start = time.perf_counter()
        scores = weft.call("server/classifier", x)
        times.append((time.perf_counter() - start) * 1e6)
        assert scores.shape[0] == x.shape[0]
    return times


def main() -> None:
    """Joins the group of MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, and asks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="python-client")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--columns", type=int, default=64)
    arguments = parser.parse_args()
    weft.init_rpc(
        arguments.name,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    x = torch.ones(1, arguments.columns)
    _ask(50, x)
    start = time.perf_counter()
    with ThreadPoolExecutor(arguments.threads) as pool:
        parts = list(pool.map(lambda _: _ask(arguments.requests, x), range(arguments.threads)))
    seconds = time.perf_counter() - start
    rpc.shutdown()
    times = sorted(time for part in parts for time in part)
    print(
        f"Python client, {arguments.threads} threads: p50 {times[len(times) // 2]:.0f} us, "
        f"p99 {times[len(times) * 99 // 100]:.0f} us, {len(times) / seconds:.0f} requests/s"
    )


if __name__ == "__main__":
    main()
