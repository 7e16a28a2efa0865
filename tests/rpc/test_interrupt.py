"""Ctrl-C: KeyboardInterrupt at once wherever a person may wait, and nothing is broken afterwards."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from typing import Any

import pytest
import torch
from ctrl_c import TRIES, Delays
from module_group import module_group
from ports import free_port
from waiting import takes, wait_until
from workers import Group, Workers, ended_by, join, leave

import weft  # noqa: F401 - the operators that the script calls


@torch.jit.script
def doubled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


@torch.jit.script
def called_by_script(x: torch.Tensor) -> torch.Tensor:
    args: list[Any] = [x]
    return torch.ops.weft.call("worker1", "name", args, like=[x])


group = module_group(2, rpc_timeout=60)


# What workers run.

_interrupted = threading.Event()


def echo(*values):
    return values


def wait_until_interrupted() -> None:
    _interrupted.wait(60)


def make_rref() -> None:
    import torch.distributed.rpc as rpc

    make_rref.rref = rpc.remote("worker1", echo, args=(torch.ones(2), "text"))
    make_rref.rref.to_here()


def wait_in(kind: str):
    """Waits for a worker that does not answer; what ended the wait, and when."""
    import torch.distributed.rpc as rpc

    one = torch.ones(2)

    def in_inference_mode():
        with torch.inference_mode():
            return rpc.rpc_sync("worker1", echo, args=(one,))

    def in_a_script():
        try:
            called_by_script(one)
        except RuntimeError:  # what TorchScript makes of KeyboardInterrupt, which comes again
            time.sleep(0)

    waits = {
        "a call by a script": in_a_script,
        "rpc_sync": lambda: rpc.rpc_sync("worker1", echo, args=(one,)),
        "rpc_sync of a builtin": lambda: rpc.rpc_sync("worker1", torch.add, args=(one, 1)),
        "rpc_sync of a script": lambda: rpc.rpc_sync("worker1", doubled, args=(one,)),
        "rpc_sync in inference mode": in_inference_mode,
        "wait": lambda: rpc.rpc_async("worker1", echo, args=(one,)).wait(),
        "wait for a builtin": lambda: rpc.rpc_async("worker1", torch.add, args=(one, 1)).wait(),
        "to_here": lambda: make_rref.rref.to_here(),
        "own to_here": lambda: rpc.remote("worker0", wait_until_interrupted).to_here(),
        "a full queue": lambda: [
            rpc.rpc_async("worker1", echo, args=(torch.ones(1 << 24),)) for _ in range(9)
        ],
    }
    _interrupted.clear()
    try:
        return ended_by(waits[kind], kind)
    finally:
        _interrupted.set()


def join_until(*arguments, **options) -> tuple[str, float]:
    return ended_by(lambda: join(*arguments, **options), "init_rpc")


def leave_until() -> tuple[str, float]:
    return ended_by(leave, "shutdown")


def calls_under_signals(seconds: float) -> tuple[int, list[str]]:
    """A stream of calls: how many ended with KeyboardInterrupt, and what else went wrong."""
    import torch.distributed.rpc as rpc

    interrupted, errors, inside = 0, [], [False]

    def handler(*_) -> None:
        if inside[0]:
            inside[0] = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handler)
    print("stream begins", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            inside[0] = True
            answer = rpc.rpc_sync("worker1", echo, args=(torch.ones(3), {"a": [1, "b", 2.5]}))
            rpc.rpc_sync("worker1", torch.add, args=(torch.ones(3), 1))
            inside[0] = False
            assert answer[1] == {"a": [1, "b", 2.5]}
        except KeyboardInterrupt:
            interrupted += 1
        except Exception as error:
            errors.append(repr(error))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return interrupted, errors


def sum_there() -> float:
    import torch.distributed.rpc as rpc

    return sum(rpc.rpc_sync("worker1", echo, args=(torch.ones(3),))[0]).item()


# The tests.


@pytest.mark.parametrize(
    "kind",
    [
        "a call by a script",
        "rpc_sync",
        "rpc_sync of a builtin",
        "rpc_sync of a script",
        "rpc_sync in inference mode",
        "wait",
        "wait for a builtin",
        "to_here",
        "own to_here",
    ],
)
def test_ctrl_c_ends_a_wait(group, kind):
    delays = Delays()
    group[0].call(make_rref)
    group[1].stop()
    try:
        for _ in range(TRIES):
            delays.add(group[0], wait_in, kind)
    finally:
        group[1].signal(signal.SIGCONT)
    delays.check()
    assert group[0].call(sum_there) == 3


def test_ctrl_c_ends_the_wait_for_room():
    with Group(2, rpc_timeout=60) as members:
        members[1].stop()
        delays = Delays()
        for _ in range(TRIES):
            delays.add(members[0], wait_in, "a full queue")
        members[1].kill()
        delays.check()


def test_signals_at_any_moment_break_no_call(group):
    group[0].start(calls_under_signals, 3.0)
    group[0].wait_for_output("stream begins")
    for _ in range(200):
        takes(random.uniform(0, 0.01))
        group[0].signal(signal.SIGINT)
    interrupted, errors = group[0].result(timeout=20)
    assert errors == []
    assert interrupted > 20
    assert group[0].call(sum_there) == 3


def test_ctrl_c_ends_shutdown():
    delays = Delays()
    for _ in range(3):
        with Group(2) as members:
            delays.add(members[0], leave_until)
            members[1].kill()
    delays.check()


def test_ctrl_c_ends_init_rpc_with_a_missing_worker():
    delays = Delays()
    for _ in range(3):
        with Workers(1) as workers:
            delays.add(workers[0], join_until, 0, 2, workers.meeting)
    delays.check()


def test_ctrl_c_ends_init_rpc_without_rank_0():
    delays = Delays()
    for _ in range(3):
        with Workers(1) as workers:
            delays.add(workers[0], join_until, 1, 2, f"tcp://127.0.0.1:{free_port()}")
    delays.check()


def test_ctrl_c_ends_init_rpc_with_a_stopped_member():
    delays = Delays()
    for _ in range(3):
        with Workers(2) as workers:
            workers[0].call(join, 0, None, workers.meeting)
            workers[0].stop()
            delays.add(workers[1], join_until, 1, None, workers.meeting)
            workers[0].kill()
    delays.check()


def take(seconds: float) -> None:
    print("is called", flush=True)
    takes(seconds)


def leave_in_a_handler(seconds: float) -> bool:
    import torch.distributed.rpc as rpc

    left = []
    signal.signal(signal.SIGTERM, lambda *_: left.append(leave()))
    # The answer came before the end of the group; to read a Python object torch wants its agent.
    with contextlib.suppress(RuntimeError):
        rpc.rpc_sync("worker1", take, args=(seconds,))
    return bool(left)


def test_a_handler_may_leave_while_its_thread_waits_for_an_answer():
    with Group(2) as group:
        group[0].start(leave_in_a_handler, 1.0)
        wait_until(lambda: "is called" in group[1].output(), group[1].output)
        group[0].signal(signal.SIGTERM)
        group[1].call(leave, timeout=20)
        assert group[0].result(timeout=20)
