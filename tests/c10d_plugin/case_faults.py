"""What goes wrong on purpose before a case's operations, on the rank itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import select
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from case_rank import Outcome, State

# Seconds for a child's call and its end: the end of an interpreter with torch in it alone takes
# some of them on a crowded machine.
CHILD_LIMIT = 20.0


def attempt(text: str, group: str, must_fail: bool, start: Callable[[], str | None]) -> Outcome:
    started = time.monotonic()
    try:
        why = start()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        took = time.monotonic() - started
        return Outcome(0, -1, "right" if must_fail else "raised", took, text, said, group=group)
    took = time.monotonic() - started
    if must_fail:
        return Outcome(0, -1, "wrong", took, text, why or "succeeded", group=group)
    return Outcome(0, -1, "wrong" if why else "right", took, text, why or "", group=group)


def failed_batch(case: int, seed: int, victim: int) -> list[Outcome]:
    """An exception in the middle of a batch, on one rank."""
    import torch

    if State.rank != victim:
        return []
    peer = (victim + 1) % dist.get_world_size()
    sparse = torch.eye(3).to_sparse()
    ops = [dist.P2POp(dist.isend, sparse, peer, tag=9)]
    if seed % 2:
        ops.insert(0, dist.P2POp(dist.isend, torch.ones(4), peer, tag=(case % 1000) + (1 << 21)))
    return [
        attempt(
            "a batch with an isend of a sparse tensor",
            "world",
            True,
            lambda: dist.batch_isend_irecv(ops) and None,
        )
    ]


def disagreement(case: int, seed: int, victim: int) -> list[Outcome]:
    """One rank asks for something else than the others: it fails on all."""
    import torch

    rng = random.Random(seed)
    group, size = State.groups["own"][0], dist.get_world_size()
    numel = rng.choice((6, 1000, 30_000, 400_000)) * size
    way = rng.choice(("size", "dtype", "reduction", "kind", "parts"))
    odd = State.rank == victim
    tensor = torch.full((numel,), State.rank + 1.0)

    def start() -> None:
        if way == "size":
            dist.all_reduce(torch.ones(numel + odd), group=group)
        elif way == "dtype":
            dist.all_reduce(tensor.int() if odd else tensor, group=group)
        elif way == "reduction":
            op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
            dist.all_reduce(tensor, op, group=group)
        elif way == "parts":
            sizes = [4] * size
            sizes[(victim + 1) % size] += odd
            dist.all_gather([torch.empty(n) for n in sizes], torch.empty(sizes[State.rank]), group)
        elif odd:
            dist.reduce_scatter_tensor(torch.empty(numel // size), tensor, group=group)
        else:
            dist.all_reduce(tensor, group=group)

    # Only who expects too much cannot have it.
    must_fail = odd or way != "parts"
    return [attempt(f"{way} of {numel} differs on rank {victim}", "own", must_fail, start)]


def aliases(case: int, seed: int, victim: int) -> list[Outcome]:
    """Inputs and outputs share memory, in ways that only some ranks may see."""
    import torch

    rng = random.Random(seed)
    group, size, rank = State.groups["own"][0], dist.get_world_size(), State.rank
    numel = rng.choice((4, 3000, 300_000))
    backend = group._get_backend(torch.device("cpu"))
    heap = rng.random() < 0.5 and backend.supports_tensor_alloc(torch.device("cpu"))

    def made() -> torch.Tensor:
        if heap:
            return backend.allocate_tensor(
                numel * size, dtype=torch.float32, device=torch.device("cpu")
            )
        return torch.empty(numel * size)

    whole = made().copy_(torch.arange(numel * size) % 9973 + 10_000 * (rank + 1))
    parts, other = list(whole.chunk(size)), (rank + 1) % size
    way = rng.choice(("scatter", "gather", "all_to_all", "all_gather", "reduce_scatter"))

    def of(of_rank: int, part: int) -> torch.Tensor:
        return torch.arange(part * numel, (part + 1) * numel) % 9973 + 10_000.0 * (of_rank + 1)

    def start() -> str | None:
        root, wanted = victim, [of(rank, p) for p in range(size)]
        if way == "scatter":
            into = parts[other] if rank == root else torch.empty(numel)
            dist.scatter(into, parts if rank == root else None, root, group=group)
            wanted[other] = of(root, rank)
            if rank != root:
                return (
                    None if torch.equal(into, of(root, rank)) else f"rank {rank} got another part"
                )
        elif way == "gather":
            dist.gather(parts[other], parts if rank == root else None, root, group=group)
            if rank == root:
                wanted = [of(r, (r + 1) % size) for r in range(size)]
        elif way == "all_gather":
            dist.all_gather(parts, parts[other], group=group)
            wanted = [of(r, (r + 1) % size) for r in range(size)]
        elif way == "all_to_all":
            dist.all_to_all(parts[1:] + parts[:1], parts, group=group)
            wanted = [of((p - 1) % size, rank) for p in range(size)]
        else:
            dist.reduce_scatter(parts[other], parts, group=group)
            wanted[other] = sum(of(r, rank) for r in range(size))
        got = [bool(torch.equal(p, w)) for p, w in zip(parts, wanted, strict=True)]
        return None if all(got) else f"parts {[i for i, ok in enumerate(got) if not ok]} are wrong"

    text = f"{way} of [{numel}]{' (heap)' if heap else ''}, output in another's input"
    return [attempt(text, "own", False, start)]


SPECIAL = {"failed batch": failed_batch, "disagreement": disagreement, "alias": aliases}


def in_a_child(seed: int) -> list[Outcome]:
    """A forked child calls a collective of its parent's group: an error at once, and a quick end."""
    import torch

    rng = random.Random(seed)
    way = rng.choice(("all_reduce", "async", "send", "barrier", "new", "exit", "destroy"))
    numel = rng.choice((4, 100_000))
    readable, writable = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        said = "succeeded"
        try:
            if way == "all_reduce":
                dist.all_reduce(torch.ones(numel))
            elif way == "async":
                dist.all_reduce(torch.ones(numel), async_op=True).wait()
            elif way == "barrier":
                dist.barrier()
            elif way == "send":
                dist.send(torch.ones(numel), (State.rank + 1) % dist.get_world_size())
            elif way == "new":
                dist.new_group([State.rank])
        except Exception as error:
            said = f"raised {type(error).__name__}: {error}"
        called = time.monotonic()
        if way == "destroy":
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
            if time.monotonic() - called > 3:
                said = "waited in destroy_process_group"
        os.write(writable, said.encode()[:4000])
        ctypes.pythonapi.Py_Exit(0)
    os.close(writable)
    said, status = "", None
    limit = time.monotonic() + CHILD_LIMIT
    if select.select([readable], [], [], CHILD_LIMIT)[0]:
        said = os.read(readable, 4000).decode()
    ended = os.pidfd_open(child)
    if select.select([ended], [], [], max(0.0, limit - time.monotonic()))[0]:
        _, status = os.waitpid(child, 0)
    took = time.monotonic() - started
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(ended)
    os.close(readable)
    wrong = ""
    if way in ("all_reduce", "async", "send", "barrier") and not said.startswith("raised"):
        wrong = f"the child's call {said or 'gave nothing'}"
    elif said.startswith("waited"):
        wrong = f"the child {said}"
    elif status != 0:
        wrong = f"the child {'did not end' if status is None else f'ended with {status}'}"
    text = f"a forked child: {way} [{numel}]"
    found = [Outcome(0, 0, "wrong" if wrong else "right", took, text, wrong or said, group="world")]

    def again() -> str | None:
        tensor = torch.ones(numel)
        dist.all_reduce(tensor)
        return None if bool((tensor == dist.get_world_size()).all()) else "the sum is wrong"

    return [*found, attempt("an all_reduce after the fork", "world", False, again)]
