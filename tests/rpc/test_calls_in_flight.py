"""max_calls_in_flight: who makes more calls than that waits for room."""

from __future__ import annotations

import signal
import time

import pytest
from callback_chains import calls_in_callbacks
from gate import open_gate, wait_for_gate
from waiting import wait_until
from workers import Group

LIMIT = 3


@pytest.fixture
def group():
    with Group(2, per_rank=[{"max_calls_in_flight": LIMIT}, {}]) as members:
        yield members
        for worker in members:
            worker.call(open_gate)
        members.shutdown()


# What workers run.


def echo(value):
    return value


def fill() -> None:
    """As many calls as may be in flight."""
    import torch.distributed.rpc as rpc

    fill.calls = [rpc.rpc_async("worker1", wait_for_gate, timeout=0) for _ in range(LIMIT)]


def empty() -> None:
    for call in fill.calls:
        call.wait()


def one_more(kind: str, seconds: float) -> tuple[str, float]:
    import torch
    import torch.distributed.rpc as rpc

    began = time.monotonic()
    try:
        if kind == "sync":
            rpc.rpc_sync("worker1", echo, args=(1,), timeout=seconds)
        elif kind == "async":
            rpc.rpc_async("worker1", echo, args=(1,), timeout=seconds).wait()
        elif kind == "operator":
            rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1), timeout=seconds)
        else:
            rpc.remote("worker1", echo, args=(1,), timeout=seconds)._get_future().wait()
    except RuntimeError as error:
        return str(error), time.monotonic() - began
    return "answered", time.monotonic() - began


@pytest.mark.parametrize("kind", ["sync", "async", "operator", "remote"])
def test_one_more_waits_as_long_as_its_timeout(group, kind):
    group[0].call(fill)
    text, took = group[0].call(one_more, kind, 0.2)
    assert "worker 'worker0' (rank 0) has 3 calls to worker 'worker1' (rank 1) in flight" in text
    assert "max_calls_in_flight" in text and "200 ms" in text
    assert "RESOURCE_EXHAUSTED" in text
    assert 0.2 <= took < 5
    group[1].call(open_gate)
    group[0].call(empty)
    assert group[0].call(one_more, kind, 20)[0] == "answered"


def test_an_answer_makes_room(group):
    group[0].call(fill)
    group[0].start(one_more, "sync", 0)
    assert not group[0].has_answered_within(0.2)
    group[1].call(open_gate)
    assert group[0].result()[0] == "answered"


def make_rref() -> None:
    import torch.distributed.rpc as rpc

    make_rref.rref = rpc.remote("worker1", echo, args=([1],))
    assert make_rref.rref.to_here() == [1]


def drop_rref() -> None:
    del make_rref.rref


def owned() -> int:
    import weft

    return sum(row.owner == "worker1" for row in weft.rref_report())


def call_oneself() -> int:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync("worker0", echo, args=(5,))


def test_what_is_not_counted(group):
    group[0].call(make_rref)
    group[0].call(fill)
    assert group[0].call(call_oneself) == 5
    group[0].call(drop_rref)
    wait_until(lambda: group[1].call(owned) == 0, "the value is released")


def burst(count: int) -> int:
    import torch.distributed.rpc as rpc

    calls = [rpc.rpc_async("worker1", echo, args=(i,)) for i in range(count)]
    return sum(call.wait() for call in calls)


def test_many_calls_and_callbacks_get_through(group):
    assert group[0].call(burst, 2000) == sum(range(2000))
    assert group[0].call(calls_in_callbacks, 5, 20) == [6] * 20


def interrupted() -> str:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    print("waits for room", flush=True)
    try:
        one_more("async", 0)
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "answered"


def test_ctrl_c_ends_the_wait(group):
    group[0].call(fill)
    group[0].start(interrupted)
    group[0].wait_for_output("waits for room")
    group[0].signal(signal.SIGINT)
    assert group[0].result(5) == "KeyboardInterrupt"
    group[1].call(open_gate)
    group[0].call(empty)
    assert group[0].call(burst, 50) == sum(range(50))


def test_the_loss_of_the_peer_ends_the_wait():
    with Group(2, per_rank=[{"max_calls_in_flight": LIMIT}, {}]) as members:
        members[0].call(fill)
        members[0].start(one_more, "async", 0)
        members[1].kill()
        assert "worker1" in members[0].result()[0]


def call_in_a_handler() -> str:
    """Waits for room until a signal's handler has called the same worker."""
    import torch.distributed.rpc as rpc

    heard: list[int] = []

    def call(*_) -> None:
        heard.append(rpc.rpc_sync("worker1", echo, args=(7,)))

    signal.signal(signal.SIGUSR1, call)
    print("waits for room", flush=True)
    answered, _ = one_more("sync", 20)
    assert heard == [7]
    return answered


def test_a_handler_calls_amid_the_wait(group):
    group[0].call(fill)
    group[0].start(call_in_a_handler)
    wait_until(lambda: "waits for room" in group[0].output(), "it waits")
    assert not group[0].has_answered_within(0.2)
    group[0].signal(signal.SIGUSR1)
    assert not group[0].has_answered_within(0.2)
    group[1].call(open_gate)
    assert group[0].result(timeout=10) == "answered"
