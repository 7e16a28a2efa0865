"""What the simulation is fed with: the costs of the Store's server and of a message."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True)
class Costs:
    """Seconds. The defaults are round figures for a server of one thread in a cluster."""

    request: float = 20e-6  # the Store's server: one request
    key: float = 0.5e-6  # each further key of one request
    byte: float = 1e-9  # each byte that it answers with
    network: float = 50e-6  # a message from a rank to the server, or to another rank
    refused: float = 1e-3  # until a dead process's host refuses a connection


def _client(port: int, calls: int, gate: Any, answers: Any) -> None:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    gate.wait(60)
    began = time.perf_counter()
    for number in range(calls):
        store.check(["present"])
        store.add("counter", 1)
        store.set(f"key/{number % 50}", "x" * 100)
        store.get("present")
    answers.put(time.perf_counter() - began)


def measure(clients: int = 4, calls: int = 500) -> Costs:
    """The costs here: of torch's TCPStore over loopback, asked by several processes at once."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
    store.set("present", "x")
    context = multiprocessing.get_context("spawn")
    gate, answers = context.Barrier(clients), context.Queue()
    processes = [
        context.Process(target=_client, args=(store.port, calls, gate, answers), daemon=True)
        for _ in range(clients)
    ]
    for process in processes:
        process.start()
    taken = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
    request = max(taken) / (clients * calls * 4)

    def seconds(call: Any) -> float:
        times = []
        for _ in range(20):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    keys = [f"many/{number}" for number in range(1000)]
    for key in keys:
        store.set(key, "x")
    store.set("large", "x" * (4 << 20))
    one = seconds(lambda: store.check(["present"]))
    return Costs(
        request=request,
        key=max(0.0, seconds(lambda: store.check(keys)) - one) / len(keys),
        byte=max(0.0, seconds(lambda: store.get("large")) - one) / (4 << 20),
        network=max(0.0, one - request) / 2,
    )
