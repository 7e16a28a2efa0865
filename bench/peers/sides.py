"""One process that calls another, by each system: ``python -m bench.peers.sides weft``, ray or monarch.

Each side takes the settings that its own documentation advises for speed. Where there is more than one
way to send the bytes, all are measured, and the best counts. Prints the figures as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy
import torch

SIZE = 16 << 20
CALL, BYTES = "a Python function us", "16 MiB there and back gb_s"
Figures = dict[str, float]


def add_one(number: int) -> int:
    """The function that is called."""
    return number + 1


def echo(value: Any) -> Any:
    """Gives the bytes back."""
    return value


def median(call: Callable[[], object], count: int) -> float:
    """Seconds of one call, after some that do not count."""
    times = []
    for number in range(count + count // 5 + 3):
        begin = time.perf_counter()
        call()
        if number >= count // 5 + 3:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def figures(small: Callable[[], int], large: dict[str, Callable[[], object]]) -> Figures:
    """Both rows. ``large`` has a call for each way to send 16 MiB there and back."""
    assert small() == 2
    found = {CALL: median(small, 500) * 1e6}
    ways = {way: 2 * SIZE / median(call, 20) / 1e9 for way, call in large.items()}
    best = max(ways, key=ways.__getitem__)
    print(f"the best way for 16 MiB: {best}, of {ways}", file=sys.stderr)
    found[BYTES] = ways[best]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def weft_side() -> Figures:
    """An ordinary tensor, and one of ``weft.empty``, which is sent without a copy."""
    import torch.distributed.rpc as rpc

    import weft

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    serve = "from bench.peers import sides; sides.weft_worker()"
    worker = subprocess.Popen([sys.executable, "-c", serve])
    try:
        weft.init_rpc("caller", rank=0, world_size=2, rpc_timeout=300)
        plain = torch.ones(SIZE, dtype=torch.uint8)
        shared = weft.snapshot(plain)
        found = figures(
            lambda: rpc.rpc_sync("worker", add_one, (1,)),
            {
                "a tensor": lambda: rpc.rpc_sync("worker", echo, (plain,)),
                "a tensor of weft.snapshot": lambda: rpc.rpc_sync("worker", echo, (shared,)),
            },
        )
        rpc.shutdown()
        return found
    finally:
        worker.kill()


def weft_worker() -> None:
    """The process that is called; it imports this module as the caller does."""
    import torch.distributed.rpc as rpc

    import weft

    weft.init_rpc("worker", rank=1, world_size=2, rpc_timeout=300)
    rpc.shutdown()


def ray_side() -> Figures:
    """An actor's methods; arrays go through the object store, from which NumPy's are read in place."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=2)

    @ray.remote(num_cpus=1, enable_task_events=False)
    class Callee:
        def add_one(self, number: int) -> int:
            return number + 1

        def echo(self, value: Any) -> Any:
            return value

    callee = Callee.remote()
    array, tensor = numpy.ones(SIZE, dtype=numpy.uint8), torch.ones(SIZE, dtype=torch.uint8)
    found = figures(
        lambda: ray.get(callee.add_one.remote(1)),
        {
            "a NumPy array": lambda: ray.get(callee.echo.remote(array)),
            "a tensor": lambda: ray.get(callee.echo.remote(tensor)),
        },
    )
    ray.shutdown()
    return found


def monarch_side() -> Figures:
    """An actor's endpoints, in a process of this host."""
    from monarch.actor import Actor, endpoint, this_host

    class Callee(Actor):
        @endpoint
        def add_one(self, number: int) -> int:
            return number + 1

        @endpoint
        def echo(self, value: Any) -> Any:
            return value

    processes = this_host().spawn_procs(per_host={"gpus": 1})
    callee = processes.spawn("callee", Callee)
    tensor, plain = torch.ones(SIZE, dtype=torch.uint8), bytes(SIZE)
    found = figures(
        lambda: callee.add_one.call_one(1).get(),
        {
            "a tensor": lambda: callee.echo.call_one(tensor).get(),
            "bytes": lambda: callee.echo.call_one(plain).get(),
        },
    )
    processes.stop().get()
    return found


SIDES = {"weft": weft_side, "ray": ray_side, "monarch": monarch_side}

if __name__ == "__main__":
    from bench.peers import sides  # the module that the worker imports, not __main__

    torch.set_num_threads(1)
    print(json.dumps(sides.SIDES[sys.argv[1]]()), flush=True)
    os._exit(0)  # what a system leaves running at its exit is not measured
