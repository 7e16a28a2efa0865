"""Deadlines travel with calls, and what nobody waits for any more is not begun."""

from __future__ import annotations

import gc
import signal
import threading
import time

import pytest
import torch
from gate import BEGUN, close_gate, open_gate, wait_for_gate, wait_until_begun
from module_group import module_group
from waiting import wait_for, wait_until
from workers import Group

import weft

INHERITED = "(the time that was left of the call in which it was made)"

assert weft.cancelled  # and its operators, of which the script is made


@torch.jit.script
def spin_until_cancelled(tensor: torch.Tensor) -> torch.Tensor:
    while not bool(torch.ops.weft.cancelled()):
        pass
    return tensor


_notes: list[object] = []


group = module_group(3)


# What workers run.


def left() -> float | None:
    import weft

    return weft.deadline()


def left_of_publication(_: int) -> float:
    import weft

    return weft.deadline() or -1.0


def _left_later():
    import torch

    done = torch.futures.Future()
    done.set_result(left())
    return done


def left_later():
    return _left_later()


left_later._wrapped_async_rpc_function = _left_later  # rpc.functions.async_execution


def note(what: object) -> None:
    _notes.append(what)


def notes() -> list[object]:
    return list(_notes)


def forget() -> None:
    close_gate()
    _notes.clear()


@pytest.fixture
def fresh(group):
    for worker in group:
        worker.call(forget)
    yield group
    for worker in group:
        worker.call(open_gate)


def debug(key: str) -> int:
    import torch.distributed.rpc as rpc

    return int(rpc.api._get_current_rpc_agent().get_debug_info()[key])


def call(to: str, function: object, *args: object, seconds: float = 20) -> object:
    """An rpc_sync of a function of this module, by name, or of any other."""
    import torch.distributed.rpc as rpc

    found = globals()[function] if isinstance(function, str) else function
    return rpc.rpc_sync(to, found, args=args, timeout=seconds)


def fails(to: str, function: object, *args: object, seconds: float = -1) -> str:
    """The error of a call that must fail."""
    try:
        call(to, function, *args, seconds=seconds)
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was answered")


# The callee sees the time that is left.


def ask(kind: str, to: str, timeout: float) -> float | None:
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    import weft

    if kind == "sync":
        return rpc.rpc_sync(to, left, timeout=timeout)
    if kind == "async":
        return rpc.rpc_async(to, left, timeout=timeout).wait()
    if kind == "async_execution":
        return rpc.rpc_sync(to, left_later, timeout=timeout)
    if kind == "remote":
        return rpc.remote(to, left, timeout=timeout).to_here()
    if kind == "autograd":
        with dist_autograd.context():
            return rpc.rpc_sync(to, left, timeout=timeout)
    return weft.call(f"{to}/left", 1, timeout=timeout)


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
@pytest.mark.parametrize("kind", ["sync", "async", "async_execution", "remote", "autograd"])
def test_the_callee_sees_the_time_that_is_left(group, kind, to):
    seen = group[0].call(ask, kind, to, 20)
    assert 0 < seen <= 20.001
    assert group[0].call(ask, kind, to, 0) is None


def publish_left() -> None:
    import weft

    weft.publish("left", left_of_publication)


def test_a_published_function_sees_it(group):
    group[1].call(publish_left)
    assert 0 < group[0].call(ask, "published", "worker1", 20) <= 20.001


def outside() -> tuple[object, object]:
    import weft

    return weft.deadline(), weft.cancelled()


def test_outside_of_calls_there_is_none(group):
    assert group[0].call(outside) == (None, False)


def in_a_thread() -> list[object]:
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.extend(outside()))
    thread.start()
    thread.join()
    return seen


def test_a_thread_of_the_function_has_none(group):
    assert group[0].call(call, "worker1", "in_a_thread") == [None, False]


# Calls inherit it.


def ask_on(kind: str, timeout: float) -> tuple[float | None, float | None]:
    return left(), ask(kind, "worker2", timeout)


@pytest.mark.parametrize("kind", ["sync", "async", "async_execution", "remote", "autograd"])
@pytest.mark.parametrize("timeout", [0, 100, -1])
def test_a_chain_inherits_the_deadline(group, kind, timeout):
    first, second = group[0].call(call, "worker1", "ask_on", kind, timeout)
    assert 0 < second <= first + 0.002 <= 20.003


def test_a_shorter_timeout_holds(group):
    first, second = group[0].call(call, "worker1", "ask_on", "sync", 5)
    assert first > 5 and 0 < second <= 5.001


def test_a_call_without_a_timeout_gives_none(group):
    assert group[0].call(call, "worker1", "ask_on", "sync", 0, seconds=0) == (None, None)


def _two_after_another():
    import torch.distributed.rpc as rpc

    def again(first):
        return [first.wait(), left(), rpc.rpc_sync("worker2", left, timeout=0)]

    return rpc.rpc_async("worker2", left, timeout=0).then(again)


def two_after_another():
    return _two_after_another()


two_after_another._wrapped_async_rpc_function = _two_after_another


def test_callbacks_inherit_it(group):
    seen = group[0].call(call, "worker1", "two_after_another")
    assert all(value is not None and 0 < value <= 20.002 for value in seen)


# A callback runs on the thread that completes its future, which may serve another call.

_firsts: list[torch.futures.Future] = []  # another call completes them
_seen: list[torch.futures.Future] = []


def _look(how: str) -> torch.futures.Future:
    """What a callback sees that is registered here."""
    import torch
    import torch.distributed.rpc as rpc

    import weft

    first, seen = torch.futures.Future(), torch.futures.Future()

    def look(_: object) -> None:
        try:
            seen.set_result([left(), weft.cancelled(), rpc.rpc_sync("worker2", left)])
        except RuntimeError as error:
            seen.set_result(str(error))

    if how == "add_done_callback":
        first.add_done_callback(look)
    else:
        (torch.futures.collect_all([first]) if how == "collect_all" else first).then(look)
    _firsts.append(first)
    return seen


def look_in_a_call(how: str) -> torch.futures.Future:
    return _look(how)


look_in_a_call._wrapped_async_rpc_function = _look


def complete_late() -> None:
    import weft

    wait_until(lambda: _firsts and weft.cancelled(), "this call's deadline passes")
    _firsts.pop().set_result(None)


def look_in_two_calls(how: str) -> object:
    import torch.distributed.rpc as rpc

    seen = rpc.rpc_async("worker1", look_in_a_call, args=(how,), timeout=20)
    fails("worker1", complete_late, seconds=0.5)
    return seen.wait()


HOW = pytest.mark.parametrize("how", ["then", "add_done_callback", "collect_all"])


@HOW
def test_a_callback_has_the_deadline_of_the_call_that_registered_it(group, how):
    seen = group[0].call(look_in_two_calls, how)
    assert isinstance(seen, list), seen
    registered, cancelled, inherited = seen
    assert 0 < inherited <= registered + 0.002 <= 20.003 and not cancelled


def look_outside(how: str) -> None:
    _seen.append(_look(how))


def what_was_seen() -> object:
    return _seen.pop().wait()


@HOW
def test_a_callback_that_no_call_registered_has_none(group, how):
    group[1].call(look_outside, how)
    group[0].call(fails, "worker1", "complete_late", seconds=0.5)
    seen = group[1].call(what_was_seen)
    assert isinstance(seen, list), seen
    assert seen[:2] == [None, False]
    assert 20 < seen[2] <= 60  # the default


def patient_call() -> None:
    note(fails("worker2", wait_for_gate, seconds=0))
    wait_for_gate()  # an answer now might still be in time


def test_a_call_ends_with_the_call_around_it(fresh):
    text = fresh[0].call(fails, "worker1", "patient_call", seconds=2)
    assert "RPC ran for more than set timeout (2000 ms)" in text
    assert INHERITED not in text
    wait_until(lambda: fresh[1].call(notes), "the inner call ends")
    assert "RPC ran for more than" in fresh[1].call(notes)[0]
    assert INHERITED in fresh[1].call(notes)[0]


# What nobody waits for.


def give_up_while_queued() -> list[str]:
    """worker1's only thread is busy: what is asked meanwhile waits."""
    import torch
    import torch.distributed.rpc as rpc

    busy = rpc.rpc_async("worker1", wait_for_gate, timeout=0)
    texts = [fails("worker1", note, i, seconds=0.5) for i in range(3)]
    texts.append(fails("worker1", torch.add, torch.ones(2), 1, seconds=0.5))
    rref = rpc.RRef("of worker0")
    texts.append(fails("worker1", note, rref, seconds=0.5))
    give_up_while_queued.kept = (busy, rref)
    return texts


def finish() -> list[object]:
    import torch.distributed.rpc as rpc

    busy, _ = give_up_while_queued.kept
    busy.wait()
    rpc.rpc_sync("worker1", note, args=("later",))
    return rpc.rpc_sync("worker1", notes)


def holders() -> list[str]:
    import weft

    return [holder for row in weft.rref_report() for holder in row.holders]


def drop_kept() -> None:
    del give_up_while_queued.kept


def test_a_queued_call_that_was_given_up_never_runs():
    with Group(2, per_rank=[{}, {"num_worker_threads": 1}]) as members:
        texts = members[0].call(give_up_while_queued)
        assert [
            text for text in texts if "RPC ran for more than set timeout (500 ms)" not in text
        ] == []
        # They keep no memory while they wait for their turn.
        wait_for(lambda: members[1].call(debug, "agent.requests_dropped"), 5, "dropped requests")
        members[1].call(open_gate)
        assert members[0].call(finish) == ["later"]
        assert members[1].call(debug, "agent.requests_dropped") == 5
        # The RRef in the last of them is not held there.
        wait_until(lambda: members[0].call(holders) == [], "the fork is given back")
        members[0].call(drop_kept)
        wait_for(lambda: members[0].call(debug, "agent.client_active_calls"), 0, "calls in flight")
        members.shutdown()


def give_up_a_remote() -> None:
    """The RRef's value is made all the same: others may wait for it."""
    import torch.distributed.rpc as rpc

    busy = rpc.rpc_async("worker1", wait_for_gate, timeout=0)
    rref = rpc.remote("worker1", note, args=("made",), timeout=0.05)
    with pytest.raises(RuntimeError, match="RPC ran for more than"):
        rref._get_future().wait()
    rpc.rpc_async("worker1", note, args=("never",), timeout=0.05)
    give_up_while_queued.kept = (busy, rref)


def test_the_value_of_an_rref_is_made_all_the_same():
    with Group(2, per_rank=[{}, {"num_worker_threads": 1}]) as members:
        members[0].call(give_up_a_remote)
        wait_for(lambda: members[0].call(debug, "agent.calls_timed_out"), 2, "calls timed out")
        members[1].call(open_gate)
        assert members[0].call(finish) == ["made", "later"]
        members[0].call(drop_kept)
        members.shutdown()


def until_cancelled() -> None:
    import weft

    BEGUN.set()
    print("it has begun", flush=True)
    wait_until(weft.cancelled, "the call is cancelled", timeout=30)
    note((weft.cancelled(), weft.deadline()))
    wait_for_gate()


def test_a_long_function_learns_that_nobody_waits(fresh):
    text = fresh[0].call(fails, "worker1", "until_cancelled", seconds=2)
    assert "RPC ran for more than set timeout (2000 ms)" in text
    ((cancelled, left),) = wait_until(lambda: fresh[1].call(notes), "it notes what it learns")
    assert cancelled
    # The call's time began earlier at the caller, by as long as the request was on its way.
    assert left < 0.5


def test_the_loss_of_the_caller_cancels():
    with Group(2) as members:
        members[0].start(call, "worker1", "until_cancelled", seconds=0)
        members[1].call(wait_until_begun)
        members[0].kill()
        wait_for(lambda: members[1].call(notes), [(True, None)], "what it noted")
        members[1].call(open_gate)


def interrupted_call(to: str, function: str, *args: object) -> str:
    try:
        call(to, function, *args, seconds=0)
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "it ended"


def test_ctrl_c_cancels(fresh):
    fresh[0].start(interrupted_call, "worker1", "until_cancelled")
    fresh[1].call(wait_until_begun)
    fresh[0].signal(signal.SIGINT)
    assert fresh[0].result() == "KeyboardInterrupt"
    wait_for(lambda: fresh[1].call(notes), [(True, None)], "what it noted")
    wait_for(lambda: fresh[0].call(debug, "agent.client_active_calls"), 0, "calls in flight")


def test_ctrl_c_cancels_a_script(fresh):
    fresh[0].start(interrupted_call, "worker1", "spin_until_cancelled", torch.ones(2))
    running = lambda: fresh[1].call(debug, "agent.server_active_calls")  # noqa: E731
    wait_for(running, 1, "calls that run")
    fresh[0].signal(signal.SIGINT)
    assert fresh[0].result() == "KeyboardInterrupt"
    wait_for(running, 0, "calls that run")
    wait_for(lambda: fresh[0].call(debug, "agent.client_active_calls"), 0, "calls in flight")


def test_ctrl_c_cancels_a_call_to_oneself():
    with Group(1) as members:
        members[0].start(interrupted_call, "worker0", "until_cancelled")
        members[0].wait_for_output("it has begun")
        members[0].signal(signal.SIGINT)
        assert members[0].result() == "KeyboardInterrupt"
        wait_for(lambda: members[0].call(notes), [(True, None)], "what it noted")
        members[0].call(open_gate)
        members.shutdown()


# What keeps tables right arrives in any case.


def make() -> list[int]:
    return [1]


def drop_after_the_deadline() -> None:
    import torch.distributed.rpc as rpc

    import weft

    rref = rpc.remote("worker2", make)
    own = rpc.RRef(make())
    rpc.rpc_sync("worker2", hold, args=(own,))
    assert rref.to_here() == [1]
    wait_until(weft.cancelled, "the deadline passes")
    note(fails("worker2", left))  # at once
    del rref
    gc.collect()
    drop_after_the_deadline.own = own
    wait_for_gate()


def hold(rref: object) -> None:
    hold.kept = rref


def let_go() -> None:
    del hold.kept
    gc.collect()


def owned() -> int:
    import weft

    return sum(row.owner == "worker2" for row in weft.rref_report())


def test_rrefs_are_released_after_the_deadline(fresh):
    assert fresh[2].call(owned) == 0
    fresh[0].call(fails, "worker1", "drop_after_the_deadline", seconds=3)
    wait_until(lambda: fresh[1].call(notes), "the function ends")
    text = fresh[1].call(notes)[0]
    assert "RPC ran for more than set timeout (0 ms)" in text and INHERITED in text
    wait_for(lambda: fresh[2].call(owned), 0, "values at worker2")
    fresh[2].call(let_go)
    wait_for(lambda: fresh[1].call(holders), [], "holders of worker1's value")


# Many of them.


def flood(count: int) -> tuple[list[int], int]:
    """Calls of which some are too late; which were answered, and how many not."""
    import torch.distributed.rpc as rpc

    calls = [
        rpc.rpc_async("worker1", note, args=(i,), timeout=0.001 * (1 + i % 50))
        for i in range(count)
    ]
    answered, late = [], 0
    for i, future in enumerate(calls):
        try:
            future.wait()
            answered.append(i)
        except RuntimeError as error:
            assert "RPC ran for more than" in str(error)
            late += 1
    return answered, late


def test_each_call_runs_once_or_not_at_all(fresh):
    began = time.monotonic()
    count = 3000
    dropped = fresh[1].call(debug, "agent.requests_dropped")
    answered, late = fresh[0].call(flood, count)
    assert len(answered) + late == count
    assert fresh[0].call(call, "worker1", "left") is not None
    wait_for(lambda: fresh[1].call(debug, "agent.server_active_calls"), 0, "calls that run")
    dropped = fresh[1].call(debug, "agent.requests_dropped") - dropped
    assert len(fresh[1].call(notes)) + dropped == count
    ran = fresh[1].call(notes)
    assert len(set(ran)) == len(ran)
    assert set(answered) <= set(ran)
    wait_for(lambda: fresh[0].call(debug, "agent.client_active_calls"), 0, "calls in flight")
    print(f"{len(answered)} answered, {dropped} dropped, {time.monotonic() - began:.1f} s")
