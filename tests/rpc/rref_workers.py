"""The group of the tests of the RRef ledger, and what its workers run."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from waiting import wait_until
from workers import BOUND, Workers


class Group(Workers):
    """Workers of one RPC group, static or dynamic, `worker0` and so on; `faults` injects some."""

    def __init__(
        self,
        count: int,
        environment: dict[str, str] | None = None,
        dynamic: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(count, environment)
        with self.closed_on_failure():
            for rank, worker in enumerate(self):
                worker.start(join, rank, None if dynamic else count, self.meeting, **options)
            for worker in self:
                worker.result()


# What workers run. References that this worker's program holds:
HELD: list[Any] = []
GATE = threading.Event()


def _rpc() -> Any:
    import torch.distributed.rpc as rpc

    return rpc


def join(
    rank: int, count: int | None, meeting: str, faults: dict[str, Any] | None = None, **options: Any
) -> None:
    import weft

    rpc = _rpc()
    if faults is None:
        backend, made = "WEFT", weft.RpcBackendOptions(init_method=meeting, **options)
    else:
        import weft_faulty

        made = weft_faulty.FaultyRpcBackendOptions(init_method=meeting, **faults, **options)
        backend = weft_faulty.BACKEND
    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.backend_registry.BackendType[backend],
        rank=rank,
        world_size=count,
        rpc_backend_options=made,
    )


def count_groups(count: int) -> None:
    """As after so many groups of this process: all members of one have counted as many."""
    _rpc()._init_counter = count


def leave(graceful: bool = True, ignore_leaks: bool = True) -> float:
    rpc = _rpc()
    rpc.api._ignore_rref_leak = ignore_leaks
    started = time.monotonic()
    rpc.shutdown(graceful=graceful)
    return time.monotonic() - started


def report() -> list[Any]:
    import weft

    return weft.rref_report()


def metric(name: str) -> int:
    return int(_rpc().api._get_current_rpc_agent().get_metrics()[name])


def loss_of(rank: int) -> str | None:
    return _rpc().api._get_current_rpc_agent().loss_of(rank)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def make_tensor(elements: int) -> Any:
    import torch

    return torch.ones(elements)


def wait_for_gate(elements: int) -> Any:
    assert GATE.wait(BOUND)
    return make_tensor(elements)


def give_late() -> Any:
    """Answers with the reference that is held here, once the gate is open."""
    assert GATE.wait(BOUND)
    return HELD[0]


def ask_in_vain(to: str) -> str:
    """The error of a call whose answer, with a reference in it, comes too late."""
    try:
        _rpc().rpc_sync(to, give_late, timeout=1)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was answered")


def open_gate() -> None:
    GATE.set()


def hold(*references: Any) -> None:
    HELD.extend(references)


def hold_new(owner: str, count: int = 1, elements: int = 10) -> None:
    """Makes `count` values at `owner` and holds a reference to each, which the owner knows."""
    made = [_rpc().remote(owner, make_tensor, args=(elements,)) for _ in range(count)]
    wait_until(lambda: all(one.confirmed_by_owner() for one in made), f"{owner} confirms all")
    HELD.extend(made)


def hold_gated(owner: str) -> None:
    HELD.append(_rpc().remote(owner, wait_for_gate, args=(10,)))


def hold_script(owner: str) -> None:
    import torch

    HELD.append(_rpc().remote(owner, torch.add, args=(torch.ones(3), 1)))
    HELD[-1].to_here()


def hold_with_autograd(owner: str) -> None:
    """A remote call that torch wraps in a message of distributed autograd."""
    import torch
    import torch.distributed.autograd as dist_autograd

    with dist_autograd.context():
        HELD.append(_rpc().remote(owner, torch.add, args=(torch.ones(3, requires_grad=True), 1)))
        HELD[-1].to_here()


def give(to: str, index: int = 0, wait: bool = True) -> None:
    """Passes a held reference on."""
    future = _rpc().rpc_async(to, hold, args=(HELD[index],))
    if wait:
        future.wait()


def use(reference: Any) -> int:
    return reference.to_here(20).numel()


def give_to_use(to: str, index: int = 0) -> None:
    """Passes a held reference to a worker that uses it at once."""
    _rpc().rpc_sync(to, use, args=(HELD[index],))


def give_own(to: str, elements: int = 10) -> None:
    """Passes a reference to a new value of this worker's own."""
    _rpc().rpc_sync(to, hold, args=(_rpc().RRef(make_tensor(elements)),))


def drop(index: int) -> None:
    del HELD[index]


def drop_all() -> None:
    HELD.clear()


def to_here(index: int = 0) -> int:
    return HELD[index].to_here(20).numel()


def call_on(index: int = 0) -> int:
    return HELD[index].rpc_sync(20).numel()


def remote_then_here(owner: str) -> None:
    _rpc().remote(owner, make_tensor, args=(10,)).to_here(20)


def held_of(owner: str) -> Counter[tuple[int, int]]:
    """How many references to each value of `owner` this worker holds."""
    held: Counter[tuple[int, int]] = Counter()
    for reference in HELD:
        if reference.owner_name() == owner and not reference.is_owner():
            held[_value_id(reference)] += 1
    return held


def _value_id(reference: Any) -> tuple[int, int]:
    found = re.search(r"RRefId = \w+\(created_on=(\d+), local_id=(\d+)\)", str(reference))
    assert found, str(reference)
    return int(found[1]), int(found[2])


def act_at_random(seed: int, peers: list[str], steps: int) -> None:
    """A program that makes, passes and drops references; errors of lost peers are no matter."""
    chosen = random.Random(seed)
    for _ in range(steps):
        action = chosen.choice(["new", "new", "give", "give", "own", "drop"])
        peer = chosen.choice(peers)
        try:
            if action == "new":
                HELD.append(_rpc().remote(peer, make_tensor, args=(10,)))
            elif action == "give" and HELD:
                give(peer, chosen.randrange(len(HELD)), wait=chosen.random() < 0.5)
            elif action == "own":
                give_own(peer)
            elif action == "drop" and HELD:
                drop(chosen.randrange(len(HELD)))
        except (RuntimeError, IndexError) as error:
            print(f"{action} {peer}: {error}", flush=True)
