"""Many workers on one host: how long ``init_rpc`` takes beyond the interpreters' own start, and what
a worker costs in memory and threads. ``./dev bench rpc --ranks 64``.

``init_rpc`` begins with PyTorch's own rendezvous, the same for each backend. It is measured twice: through
a file that the workers share, and through the TCP store of rank 0. Who connects to that store asks the name
server who ::ffff:127.0.0.1 is, to name the address in its logs; a server that drops some of 64 questions at
once costs 5 s, the resolver's time limit, and none of that says anything about a backend. What comes after
the rendezvous is shown apart.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

from bench.rpc.pair import free_port, init_options

BOUND = 120.0  # seconds for one start; TensorPipe does not come up with 40 ranks
FILE, TCP = "file", "tcp"  # PyTorch's rendezvous through a FileStore, a TCPStore


@dataclass
class Rank:
    """What one worker saw; times are of the system's monotonic clock."""

    started: float
    met: float  # PyTorch's rendezvous is over
    ready: float
    cpu: float  # seconds, all threads, from met to ready
    private_before: int  # bytes that no other process shares, before init_rpc
    private_after: int  # after a call to the next rank and one from the previous
    threads: int


def _private_bytes() -> int:
    with open("/proc/self/smaps_rollup") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def _nothing() -> None:
    pass


class _Rendezvous:
    """Notes when ``dist.rendezvous`` has given a Store, while it is entered."""

    def __init__(self) -> None:
        self.at = self.cpu_at = 0.0
        self._original = dist.rendezvous

    def _timed(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        for found in self._original(*arguments, **options):
            self.at, self.cpu_at = time.monotonic(), time.process_time()
            yield found

    def __enter__(self) -> _Rendezvous:
        dist.rendezvous = self._timed
        return self

    def __exit__(self, *_: object) -> None:
        dist.rendezvous = self._original


def _work(rank: int, count: int, backend: str, meet: str, gate: Barrier, results: Any) -> None:
    torch.set_num_threads(1)
    options = init_options(backend)
    options.init_method = meet
    gate.wait(BOUND)
    before, started = _private_bytes(), time.monotonic()
    with _Rendezvous() as rendezvous:
        rpc.init_rpc(
            f"rank{rank}",
            backend=rpc.BackendType[backend],
            rank=rank,
            world_size=count,
            rpc_backend_options=options,
        )
    ready, cpu = time.monotonic(), time.process_time() - rendezvous.cpu_at
    rpc.rpc_sync(f"rank{(rank + 1) % count}", _nothing)
    gate.wait(BOUND)
    threads = len(os.listdir("/proc/self/task"))
    results.put(Rank(started, rendezvous.at, ready, cpu, before, _private_bytes(), threads))
    rpc.shutdown()


def _forked() -> ForkServerContext:
    # An interpreter with torch imported costs a fork, not seconds: its start is not measured.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.rpc", "weft", "bench.rpc.ranks"])
    return context


def measure(backend: str, count: int, rendezvous: str) -> list[Rank]:
    """Starts ``count`` workers; returns what those saw that came up within the bound."""
    with tempfile.TemporaryDirectory() as folder:
        meet = f"file://{folder}/store" if rendezvous == FILE else f"tcp://127.0.0.1:{free_port()}"
        return _start(backend, count, meet)


def _start(backend: str, count: int, meet: str) -> list[Rank]:
    context = _forked()
    gate, results = context.Barrier(count), context.Queue()
    processes = [
        context.Process(target=_work, args=(rank, count, backend, meet, gate, results), daemon=True)
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    seen: list[Rank] = []
    end = time.monotonic() + BOUND
    try:
        while len(seen) < count and time.monotonic() < end:
            if not results.empty():
                seen.append(results.get())
            elif any(process.exitcode for process in processes):
                break
            else:
                time.sleep(0.01)
        for process in processes if len(seen) == count else []:
            process.join(max(0.0, end - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
    return seen


def table(backends: tuple[str, ...], count: int) -> str:
    """Measures each backend and says what was seen, in Markdown."""
    lines = [
        f"| {count} ranks on this host | rendezvous | init_rpc s | after the rendezvous s | "
        "CPU of that, all ranks s | private memory per rank MB | threads |",
        "|---|---|---|---|---|---|---|",
    ]
    for backend in backends:
        for rendezvous in (FILE, TCP):
            seen = measure(backend, count, rendezvous)
            lines.append(f"| {backend} | {rendezvous} | {_cells(seen, count)} |")
    return "\n".join(lines)


def _cells(seen: list[Rank], count: int) -> str:
    if len(seen) < count:
        return f"failed: {len(seen)} ranks came up | | | | "
    ready = max(rank.ready for rank in seen)
    seconds = ready - min(rank.started for rank in seen)
    ours = ready - max(rank.met for rank in seen)
    cpu = sum(rank.cpu for rank in seen)
    grown = sorted(rank.private_after - rank.private_before for rank in seen)
    threads = max(rank.threads for rank in seen)
    return f"{seconds:.2f} | {ours:.2f} | {cpu:.2f} | {grown[count // 2] / 1e6:.1f} | {threads}"
