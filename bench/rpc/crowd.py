"""More workers than cores: eight call each other on this machine's cores, or on the two that
``taskset`` leaves them. ``./dev bench rpc --crowd 8``.

Threads that look for work instead of sleeping would take the cores from those that have some;
this is the figure that shows it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
import torch.distributed.rpc as rpc

from bench.rpc.pair import free_port, init_options

BOUND = 120.0  # seconds for one backend
CALLS = 400  # by each worker, one after the other, each to a peer of chance


def _work(rank: int, count: int, side: str, port: int, gate: Barrier, results: Any) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import weft  # noqa: F401  registers the backend

    rpc.init_rpc(
        f"rank{rank}",
        backend=rpc.BackendType[side.split("_")[0]],
        rank=rank,
        world_size=count,
        rpc_backend_options=init_options(side),
    )
    one, chance = torch.ones(1), random.Random(rank)
    peers = [f"rank{other}" for other in range(count) if other != rank]
    for peer in peers:
        rpc.rpc_sync(peer, torch.add, args=(one, 1))
    gate.wait(BOUND)
    cpu, start, times = time.process_time(), time.perf_counter(), []
    for _ in range(CALLS):
        before = time.perf_counter()
        rpc.rpc_sync(chance.choice(peers), torch.add, args=(one, 1))
        times.append(time.perf_counter() - before)
    wall = time.perf_counter() - start
    gate.wait(BOUND)
    results.put((wall, time.process_time() - cpu, times))
    gate.wait(BOUND)
    rpc.shutdown()


def measure(side: str, count: int) -> dict[str, float]:
    """Calls per second of all together, p50 and p99 of a call, CPU time per call."""
    context = multiprocessing.get_context("spawn")
    gate, results, port = context.Barrier(count), context.Queue(), free_port()
    processes = [
        context.Process(target=_work, args=(rank, count, side, port, gate, results), daemon=True)
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    try:
        seen = [results.get(timeout=BOUND) for _ in processes]
        for process in processes:
            process.join(BOUND)
    finally:
        for process in processes:
            process.kill()
    times = sorted(time for _, _, own in seen for time in own)
    return {
        "calls per_s": len(times) / max(wall for wall, _, _ in seen),
        "p50 us": times[len(times) // 2] * 1e6,
        "p99 us": times[len(times) * 99 // 100] * 1e6,
        "CPU per call us": sum(cpu for _, cpu, _ in seen) / len(times) * 1e6,
    }


def table(sides: tuple[str, str], count: int, rounds: int) -> str:
    """Both sides alternately; medians, and the median of the rounds' ratios, in Markdown."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else sides[::-1]:
            found[side].append(measure(side, count))
    ours, theirs = sides
    lines = [
        f"| {count} workers on {len(os.sched_getaffinity(0))} cores | {theirs} | {ours} | ratio |",
        "|---|---|---|---|",
    ]
    for name in found[ours][0]:
        a, b = ([figures[name] for figures in found[side]] for side in sides)
        ratio = statistics.median(x / y for x, y in zip(a, b, strict=True))
        lines.append(
            f"| {name} | {statistics.median(b):,.4g} | {statistics.median(a):,.4g} | {ratio:.2f} |"
        )
    return "\n".join(lines)
