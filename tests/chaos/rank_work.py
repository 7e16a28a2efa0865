"""What the ranks of a process group do while something goes wrong: collectives, in one order on all."""

from __future__ import annotations

import gc
import queue
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

LIMIT = 6.0  # seconds of each operation; a stopped rank is noticed by then
OF_ALL = ("all_reduce", "async", "all_gather", "broadcast", "scatter", "all_to_all", "gather")
OF_TWO = ("ring",)
_stopping = threading.Event()
_state: dict[str, Any] = {}
_asked: queue.SimpleQueue[tuple[int, Sequence[str]]] = queue.SimpleQueue()
_reports: queue.SimpleQueue[RankReport] = queue.SimpleQueue()


@dataclass
class RankReport:
    """One rank's: how many were right, and what ended it, if anything did."""

    right: int
    why: str = ""  # a wrong result
    error: str = ""
    ended: float = 0.0


def prepare(keeper: int, network: int) -> None:
    """Before any fault: what one does to torch's client of the Store, or to this, is not Weft's."""
    from proxied_store import make_store

    gc.freeze()  # what is imported by now is not searched at each collection
    _state["store"] = make_store(keeper, network)
    threading.Thread(target=_work, daemon=True).start()


def _work() -> None:
    while True:
        _reports.put(work(*_asked.get()))


def meet(rank: int, size: int, round_number: int) -> None:
    """The group of this round; ranks of earlier rounds leave theirs first."""
    import torch
    import torch.distributed as dist

    import weft  # noqa: F401

    torch.set_num_threads(1)
    if dist.is_initialized():
        dist.destroy_process_group()
    # The group's name in the Store is how many a process has had; torch counts failed ones, too.
    dist.distributed_c10d._world.group_count = 0
    dist.init_process_group(
        "weft",
        store=dist.PrefixStore(f"round{round_number}/", _state["store"]),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=LIMIT),
    )


def try_to_meet(rank: int) -> tuple[str, float]:
    """One of two, in a group of their own: why it does not get that far, and how long it took."""
    began = time.monotonic()
    try:
        meet(rank, 2, -1)
    except (RuntimeError, ValueError) as error:
        return str(error), time.monotonic() - began
    return "", time.monotonic() - began


def _step(number: int, seed: int, kinds: Sequence[str]) -> str | None:
    """One operation, the same on every rank; what is wrong with its result."""
    import torch
    import torch.distributed as dist

    rng = random.Random(seed * 1_000_003 + number)
    size, rank = dist.get_world_size(), dist.get_rank()
    numel = rng.choice((1, 1000, 50_000, 600_000))
    mine = torch.full((numel,), float(rank + 1))
    kind = rng.choice(kinds)
    if kind in ("all_reduce", "async"):
        work = dist.all_reduce(mine, async_op=kind == "async")
        if work is not None:
            work.wait()
        good = bool((mine == size * (size + 1) / 2).all())
    elif kind == "all_gather":
        parts = [torch.empty(numel) for _ in range(size)]
        dist.all_gather(parts, mine)
        good = all(bool((part == r + 1).all()) for r, part in enumerate(parts))
    elif kind == "ring":  # from each to the next
        got, before = torch.empty(numel), (rank - 1) % size
        sent = dist.isend(mine, (rank + 1) % size)
        dist.recv(got, before)
        sent.wait()
        good = bool((got == before + 1).all())
    elif kind == "gather":
        root = rng.randrange(size)
        parts = [torch.empty(numel) for _ in range(size)]
        dist.gather(mine, parts if rank == root else None, root)
        dist.barrier()
        good = rank != root or all(bool((part == r + 1).all()) for r, part in enumerate(parts))
    elif kind == "broadcast":
        root = rng.randrange(size)
        dist.broadcast(mine, root)
        good = bool((mine == root + 1).all())
    elif kind == "scatter":
        part = torch.empty(numel)
        dist.reduce_scatter(part, [mine.clone() for _ in range(size)])
        good = bool((part == size * (size + 1) / 2).all())
    else:
        parts = [torch.empty(numel) for _ in range(size)]
        dist.all_to_all(parts, [mine + r for r in range(size)])
        good = all(bool((part == r + 1 + rank).all()) for r, part in enumerate(parts))
    return None if good else f"{kind} of {numel} (operation {number}) gave a wrong result"


def work(seed: int, kinds: Sequence[str]) -> RankReport:
    """Operations until rank 0 has been told to stop (then all stop), or one fails."""
    import torch
    import torch.distributed as dist

    report = RankReport(0)
    try:
        while True:
            flag = torch.tensor([float(_stopping.is_set())])
            dist.broadcast(flag, 0)
            if flag.item():
                break
            why = _step(report.right, seed, kinds)
            if why:
                report.why = why
                break
            report.right += 1
    except (RuntimeError, MemoryError) as error:
        report.error = f"{type(error).__name__}: {error}"
    report.ended = time.monotonic()
    return report


def begin(seed: int, kinds: Sequence[str]) -> None:
    """`work` in the rank's other thread, so that it can be told to stop."""
    _stopping.clear()
    _asked.put((seed, kinds))


def stop(bound: float, tell: bool = True) -> RankReport | None:
    """This rank's report; None if it did not end within the bound."""
    if tell:
        _stopping.set()
    try:
        return _reports.get(timeout=bound)
    except queue.Empty:
        return None


def without(dead: int) -> str:
    """The survivors' group, made of what is left: "" or what is wrong with it."""
    import torch
    import torch.distributed as dist

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    smaller = backend.shrink([dead], 0, None)
    tensor = torch.ones(1000)
    smaller.allreduce([tensor]).wait()
    wanted = float(dist.get_world_size() - 1)
    smaller.shutdown()
    return "" if bool((tensor == wanted).all()) else f"a sum of {wanted} is {tensor[0]}"
