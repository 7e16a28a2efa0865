"""Processes forked after init_rpc: they get errors at once and end at once; their parent goes on."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from waiting import wait_until
from workers import HERE, Group

FORKED = "was forked after init_rpc"
SOON = 5.0  # seconds within which a child has ended; a hang lasts for ever

_kept: list[object] = []
_child_has_ended = threading.Event()


# What workers run.


def double(x):
    return x * 2


def keep_rref(to: str) -> None:
    import torch
    import torch.distributed.rpc as rpc

    _kept.append(rpc.remote(to, torch.ones, args=([2],)))
    _kept[0].to_here()
    _kept.append(rpc.RRef(torch.ones(3)))


def drop_all() -> None:
    _kept.clear()


def use_kept() -> list[float]:
    return _kept[0].to_here().tolist()


def rrefs_held_here() -> int:
    import weft

    return sum(len(info.holders) for info in weft.rref_report() if info.owner == "worker1")


def _child(body: Callable[[], None]) -> tuple[int, float]:
    """The exit code of a forked child, and how long it took; it writes its errors to stderr."""
    started = time.monotonic()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException as error:
            print(f"the child failed: {type(error).__name__}: {error}", file=sys.stderr)
        os._exit(code)
    return _ended(pid), time.monotonic() - started


def _ended(pid: int) -> int:
    end = os.pidfd_open(pid)
    try:
        if not select.select([end], [], [], 2 * SOON)[0]:
            os.kill(pid, signal.SIGUSR1)  # where its threads are
            select.select([end], [], [], 0.3)  # time to write that
            os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(end)


def _refused(call: Callable[[], object]) -> None:
    started = time.monotonic()
    try:
        value = call()
    except RuntimeError as error:
        assert FORKED in str(error), error
        assert time.monotonic() - started < 10
    else:
        raise AssertionError(f"{call} returned {value!r}")


def _use_everything(to: str, pending: object) -> None:
    import torch
    import torch.distributed.rpc as rpc

    import weft

    ones = torch.ones(2)
    _refused(lambda: rpc.rpc_sync(to, torch.add, args=(ones, 1)))
    _refused(lambda: rpc.rpc_sync(to, double, args=(ones,)))
    _refused(lambda: rpc.rpc_async(to, torch.add, args=(ones, 1)).wait())
    _refused(lambda: rpc.rpc_async(to, double, args=(ones,)).wait())
    _refused(lambda: rpc.remote(to, double, args=(ones,)).to_here())
    _refused(lambda: rpc.remote(to, torch.add, args=(ones, 1)).to_here())
    _refused(lambda: _kept[0].to_here())
    _refused(lambda: _kept[0].rpc_sync().sum())
    _refused(lambda: rpc.get_worker_info(to))
    _refused(lambda: weft.call(f"{to}/model", torch.ones(2)))
    _refused(weft.wait_all_workers)
    _refused(weft.rref_report)
    _refused(pending.wait)
    assert rpc.get_worker_info().name == "worker0"
    _kept.clear()


def wait_for_the_child() -> None:
    _child_has_ended.wait(30)


def end_the_wait() -> None:
    _child_has_ended.set()


def in_a_child(to: str, shuts_down: bool) -> tuple[int, float]:
    """All that a child may try, while this process has a call in flight."""
    import torch.distributed.rpc as rpc

    def body():
        _use_everything(to, pending)
        if shuts_down:
            _refused(rpc.shutdown)

    pending = rpc.rpc_async(to, wait_for_the_child)
    ended = _child(body)
    assert not pending.done()
    rpc.rpc_sync(to, end_the_wait)
    pending.wait()
    return ended


def _allow_children() -> None:
    """The workers of these tests are daemons, to which multiprocessing gives no children."""
    multiprocessing.current_process()._config["daemon"] = False


def with_multiprocessing(to: str) -> tuple[int | None, float]:
    import torch
    import torch.distributed.rpc as rpc

    def body():
        _refused(lambda: rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 1)))

    _allow_children()
    started = time.monotonic()
    child = multiprocessing.get_context("fork").Process(target=body)
    child.start()
    child.join(2 * SOON)
    if child.exitcode is None:
        child.kill()
    return child.exitcode, time.monotonic() - started


def load_data(to: str, epochs: int) -> float:
    """A training loop that reads by forked workers and calls a peer with what they read."""
    import torch
    import torch.distributed.rpc as rpc
    from torch.utils.data import DataLoader, TensorDataset

    _allow_children()
    total = 0.0
    data = TensorDataset(torch.arange(32.0))
    for _ in range(epochs):
        loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
        for (batch,) in loader:
            total += rpc.rpc_sync(to, torch.sum, args=(batch,)).item()
    return total


def fork_while_calling(to: str, children: int) -> list[int]:
    """Children of a process whose other threads call, and so may hold any lock when it forks."""
    import torch
    import torch.distributed.rpc as rpc

    stop = threading.Event()
    failures: list[str] = []

    def use():
        rpc.rpc_sync(to, torch.add, args=(torch.ones(20_000), 1))
        rpc.remote(to, torch.ones, args=([2],)).to_here()

    def call():
        while not stop.is_set():
            try:
                use()
            except RuntimeError as error:
                failures.append(str(error))
                return

    def body():
        _refused(lambda: rpc.rpc_sync(to, torch.add, args=(torch.ones(2), 1)))

    use()  # what torch makes at an operator's first call has a lock that a fork would leave taken
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = [_child(body)[0] for _ in range(children)]
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return codes


def fork_and_return() -> int:
    """A served function whose child returns, too: to a thread of a pool that it does not have."""
    pid = os.fork()
    return 0 if pid == 0 else _ended(pid)


def ask_to_fork(to: str) -> int:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync(to, fork_and_return)


def reconnects() -> int:
    import torch.distributed.rpc as rpc

    metrics = rpc.api._get_current_rpc_agent().get_metrics()
    return sum(int(value) for key, value in metrics.items() if key.endswith(".reconnects"))


# Tests.


def _nothing_happened(group: Group) -> None:
    assert group[0].call(use_kept) == [1.0, 1.0]
    assert group[1].call(rrefs_held_here) == 1, "what the child dropped was the parent's"
    assert [worker.call(reconnects) for worker in group] == [0, 0]
    assert "is lost" not in group.outputs()
    group[0].call(drop_all)
    wait_until(lambda: group[1].call(rrefs_held_here) == 0, lambda: "the value comes back", 10)


@pytest.fixture
def pair():
    with Group(2) as group:
        group[0].call(keep_rref, "worker1")
        yield group
        group.shutdown()


@pytest.mark.parametrize("shuts_down", [False, True])
def test_a_child_gets_errors_and_ends_at_once(pair, shuts_down):
    code, took = pair[0].call(in_a_child, "worker1", shuts_down)
    assert code == 0, pair.outputs()
    assert took < SOON
    _nothing_happened(pair)


def test_a_child_of_multiprocessing_ends_at_once(pair):
    code, took = pair[0].call(with_multiprocessing, "worker1")
    assert code == 0, pair.outputs()
    assert took < SOON
    _nothing_happened(pair)


def test_a_child_may_end_as_a_program_does(tmp_path):
    """By sys.exit: handlers of atexit and destructors of static objects run."""
    programs = [
        subprocess.Popen(
            [
                sys.executable,
                str(HERE / "forking_program.py"),
                str(rank),
                str(tmp_path / "meeting"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = []
    for program in programs:
        try:
            said.append(program.communicate(timeout=60)[0])
        finally:
            program.kill()
    assert [program.returncode for program in programs] == [0, 0], said
    assert "the child ended with 0" in said[0], said
    assert "is lost" not in "".join(said)


def test_data_is_loaded_by_forked_workers(pair):
    assert pair[0].call(load_data, "worker1", 3) == 3 * sum(range(32))
    _nothing_happened(pair)


def test_children_of_a_busy_process_end_at_once(pair):
    assert pair[0].call(fork_while_calling, "worker1", 15) == [0] * 15
    _nothing_happened(pair)


def test_a_child_that_returns_from_a_served_function_ends(pair):
    assert pair[0].call(ask_to_fork, "worker1") == 1
    _nothing_happened(pair)
