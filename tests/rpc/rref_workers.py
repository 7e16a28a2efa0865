"""Worker processes for the tests of the RRef ledger, and what these workers run.

Forked from a server that has imported torch and Weft, so that a worker costs milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import shutil
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

BOUND = 60.0  # seconds that any one thing may take
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["torch", "torch.distributed.rpc", "weft"])


class Failed(Exception):
    """A function raised in a worker; the text is its traceback."""


class Died(Exception):
    """The worker ended."""


def _serve(pipe: Any, output: str, environment: dict[str, str]) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    while True:
        try:
            name, arguments, options = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, globals()[name](*arguments, **options)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


class Worker:
    def __init__(self, rank: int, folder: Path, environment: dict[str, str]) -> None:
        self.rank = rank
        self.output_file = folder / f"worker{rank}.out"
        self._pipe, theirs = _FORKED.Pipe()
        self.process = _FORKED.Process(
            target=_serve, args=(theirs, str(self.output_file), environment), daemon=True
        )
        self.process.start()
        theirs.close()

    def start(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        try:
            self._pipe.send((function.__name__, arguments, options))
        except OSError as error:
            raise Died(f"worker{self.rank}") from error

    def result(self, timeout: float = BOUND) -> Any:
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"worker{self.rank}: no result after {timeout} s\n{self.output()}")
        try:
            worked, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise Died(f"worker{self.rank}\n{self.output()}") from error
        if not worked:
            raise Failed(value)
        return value

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.start(function, *arguments, **options)
        return self.result()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join(BOUND)

    def output(self) -> str:
        return self.output_file.read_text() if self.output_file.exists() else ""


class Group:
    """`count` workers of one RPC group, `worker0` and so on."""

    def __init__(
        self,
        count: int,
        environment: dict[str, str] | None = None,
        dynamic: bool = False,
        **options: Any,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="weft-rref-"))
        environment = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", **(environment or {})}
        self.workers = [Worker(rank, self.folder, environment) for rank in range(count)]
        try:
            meeting = f"file://{self.folder}/meeting"
            for worker in self.workers:
                worker.start(join, worker.rank, None if dynamic else count, meeting, **options)
            for worker in self.workers:
                worker.result()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, rank: int) -> Worker:
        return self.workers[rank]

    def all(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """Runs it in all living workers at once."""
        living = [worker for worker in self.workers if worker.process.is_alive()]
        for worker in living:
            worker.start(function, *arguments, **options)
        return [worker.result() for worker in living]

    def outputs(self) -> str:
        return "\n".join(f"--- worker{w.rank}\n{w.output()}" for w in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            print(self.outputs())
        self.close()


def until(condition: Callable[[], Any], what: str, timeout: float = BOUND) -> Any:
    """Waits for a true value of `condition` and returns it."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {timeout} s: {what}"
        time.sleep(0.05)
    return value


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
    from weft import testing

    rpc = _rpc()
    if faults is None:
        backend, made = "WEFT", weft.RpcBackendOptions(init_method=meeting, **options)
    else:
        made = testing.FaultyRpcBackendOptions(init_method=meeting, **faults, **options)
        backend = testing.BACKEND
    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.backend_registry.BackendType[backend],
        rank=rank,
        world_size=count,
        rpc_backend_options=made,
    )


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


def open_gate() -> None:
    GATE.set()


def hold(*references: Any) -> None:
    HELD.extend(references)


def hold_new(owner: str, count: int = 1, elements: int = 10) -> None:
    """Makes `count` values at `owner` and holds a reference to each, which the owner knows."""
    made = [_rpc().remote(owner, make_tensor, args=(elements,)) for _ in range(count)]
    until(lambda: all(one.confirmed_by_owner() for one in made), "confirmed")
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
