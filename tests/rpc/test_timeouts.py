"""Timeouts of calls, what happens to answers that come too late, and many calls at once."""

from __future__ import annotations

import functools
import resource
import time

import pytest
from callback_chains import calls_in_callbacks
from gate import close_gate, open_gate, wait_for_gate
from module_group import module_group
from ports import free_port
from threads import in_threads
from waiting import wait_for, wait_until
from workers import Group, Workers, join, leave

group = module_group(2, rpc_timeout=30)


def echo(value):
    return value


def late_tensor(numel: int):
    import torch

    wait_for_gate()
    return torch.ones(numel)


def debug(key: str) -> int:
    import torch.distributed.rpc as rpc

    return int(rpc.api._get_current_rpc_agent().get_debug_info()[key])


def timed_call(kind: str, timeout: float | None) -> tuple[str, float]:
    """The error of a call that nobody answers in time, and after how long it came."""
    import torch.distributed.rpc as rpc

    limit = {} if timeout is None else {"timeout": timeout}
    began = time.monotonic()
    try:
        if kind == "sync":
            rpc.rpc_sync("worker1", wait_for_gate, **limit)
        elif kind == "async":
            rpc.rpc_async("worker1", wait_for_gate, **limit).wait()
        elif kind == "to_here":
            rpc.remote("worker1", wait_for_gate, timeout=0).to_here(**limit)
        elif kind == "self":
            rpc.rpc_sync("worker0", wait_for_gate, **limit)
    except RuntimeError as error:
        return str(error), time.monotonic() - began
    return "answered", time.monotonic() - began


@pytest.fixture
def closed_gate(group):
    for worker in group:
        worker.call(close_gate)
    yield group
    for worker in group:
        worker.call(open_gate)


@pytest.mark.parametrize("kind", ["sync", "async", "to_here", "self"])
@pytest.mark.parametrize("timeout", [0.05, 0.7])  # torch counts in floats: 0.7 is less there
def test_the_timeout_of_a_call(closed_gate, kind, timeout):
    text, took = closed_gate[0].call(timed_call, kind, timeout)
    assert f"RPC ran for more than set timeout ({round(timeout * 1000)} ms)" in text
    assert timeout <= took < timeout + 15


def with_default_timeout(seconds: float) -> tuple[str, float, float]:
    import torch.distributed.rpc as rpc

    before = rpc.get_rpc_timeout()
    rpc._set_rpc_timeout(seconds)
    try:
        return (*timed_call("sync", None), before)
    finally:
        rpc._set_rpc_timeout(before)


def test_the_default_timeout(closed_gate):
    text, took, before = closed_gate[0].call(with_default_timeout, 0.2)
    assert "RPC ran for more than set timeout (200 ms)" in text
    assert 0.2 <= took < 15
    assert before == 30  # what the options said


def never(default: float) -> str:
    """Timeout 0, by the call or by default: waits for the answer however short others are."""
    import torch.distributed.rpc as rpc

    before = rpc.get_rpc_timeout()
    rpc._set_rpc_timeout(default)
    patient = rpc.rpc_async("worker1", wait_for_gate, timeout=0 if default else -1)
    try:
        rpc.rpc_sync("worker1", wait_for_gate, timeout=0.3)
    except RuntimeError as error:
        assert "RPC ran for more than" in str(error)
    assert not patient.done()
    rpc.rpc_sync("worker1", open_gate, timeout=10)
    rpc._set_rpc_timeout(before)
    return patient.wait()


@pytest.mark.parametrize("default", [0.1, 0])
def test_zero_means_never(closed_gate, default):
    assert closed_gate[0].call(never, default) == "late"


def never_by_option() -> str:
    import torch.distributed.rpc as rpc

    assert rpc.get_rpc_timeout() == 0
    patient = rpc.rpc_async("worker1", wait_for_gate)
    rpc.rpc_sync("worker1", open_gate)
    return patient.wait()


@pytest.mark.parametrize("meeting", ["file", "tcp://127.0.0.1:{port}"])
def test_zero_as_the_option_is_no_limit_for_calls_and_time_enough_to_meet(meeting):
    where = meeting.format(port=free_port())
    with Workers(2) as two:
        for rank, worker in enumerate(two):
            worker.start(join, rank, 2, two.meeting if meeting == "file" else where, rpc_timeout=0)
        for worker in two:
            worker.result()
        assert two[0].call(never_by_option) == "late"
        two.all(leave)


def very_long(timeout: float) -> int:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync("worker1", echo, args=(5,), timeout=timeout)


@pytest.mark.parametrize("timeout", [float("inf"), 1e12, 3e38])
def test_very_long_timeouts(group, timeout):
    assert group[0].call(very_long, timeout) == 5


def expire_many(count: int, numel: int) -> list[str]:
    """Calls that time out while large answers to them are still to come."""
    import torch.distributed.rpc as rpc

    calls = [rpc.rpc_async("worker1", late_tensor, args=(numel,), timeout=3) for _ in range(count)]
    texts = []
    for call in calls:
        try:
            call.wait()
        except RuntimeError as error:
            texts.append(str(error))
    return texts


def peak_memory() -> int:
    from pathlib import Path

    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def test_late_answers_take_no_memory_and_break_nothing(closed_gate):
    count, numel = 8, 4 << 20  # 16 MiB each
    timed_out = closed_gate[0].call(debug, "agent.calls_timed_out")
    texts = closed_gate[0].call(expire_many, count, numel)
    assert len(texts) == count and all("RPC ran for more than" in text for text in texts)
    assert closed_gate[0].call(debug, "agent.calls_timed_out") == timed_out + count
    wait_for(lambda: closed_gate[0].call(debug, "agent.client_active_calls"), 0, "calls in flight")
    before = closed_gate[0].call(peak_memory)
    received = closed_gate[0].call(debug, "agent.peer.worker1.bytes_received")
    closed_gate[1].call(open_gate)
    # All of them have come, and were read past.
    want = received + count * numel * 4
    wait_until(
        lambda: closed_gate[0].call(debug, "agent.peer.worker1.bytes_received") >= want,
        "the late answers come",
    )
    assert closed_gate[0].call(peak_memory) - before < 2 * 4 * numel
    assert closed_gate[0].call(echo_many, "worker1", 4, 50) == 200


def hold_a_tensor(value) -> None:
    wait_for_gate()


def burst_in_vain(count: int, numel: int) -> int:
    """So many calls with so large a tensor, all of which time out; how many did."""
    import torch
    import torch.distributed.rpc as rpc

    tensor = torch.ones(numel)
    calls = [
        rpc.rpc_async("worker1", hold_a_tensor, args=(tensor,), timeout=2) for _ in range(count)
    ]
    late = 0
    for call in calls:
        try:
            call.wait()
        except RuntimeError as error:
            late += "RPC ran for more than" in str(error)
    return late


def in_use() -> tuple[int, int]:
    """The bytes and the threads that this process has."""
    import ctypes
    from pathlib import Path

    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize(), len(list(Path("/proc/self/task").iterdir()))


def test_a_burst_that_timed_out_leaves_nothing():
    """What it took in memory, shared memory and threads comes back within seconds."""
    count, numel = 256, 1 << 18  # 1 MiB each
    with Group(2, num_worker_threads=64) as members:
        assert members[0].call(very_long, 30) == 5
        before = [worker.call(in_use) for worker in members]
        members[1].call(close_gate)
        assert members[0].call(burst_in_vain, count, numel) == count
        assert members[1].call(in_use)[1] > before[1][1] + 32, "the burst has threads"
        members[1].call(open_gate)
        for worker, (memory, threads) in zip(members, before, strict=True):
            wait_until(
                lambda w=worker, m=memory: w.call(in_use)[0] < m + (48 << 20),
                lambda w=worker, m=memory: f"{w.label} had {m} bytes and has {w.call(in_use)}",
                10,
                0.2,
            )
            wait_until(
                lambda w=worker, t=threads: w.call(in_use)[1] <= t + 8,
                lambda w=worker, t=threads: f"{w.label} had {t} threads and has {w.call(in_use)}",
                10,
                0.2,
            )
        members.shutdown()


# Many calls at once.


def call_all_at_once(count: int) -> int:
    """So many calls, all in flight before the first is waited for; the sum of the answers."""
    import torch.distributed.rpc as rpc

    calls = [rpc.rpc_async("worker1", echo, args=(number,)) for number in range(count)]
    return sum(call.wait() for call in calls)


def test_many_calls_in_flight_leave_nothing():
    """The threads that complete them, and the memory of the calls, are there for the burst only."""
    count = 20_000
    with Group(2) as members:
        assert members[0].call(call_all_at_once, 100) == sum(range(100))
        before = [worker.call(in_use) for worker in members]
        assert members[0].call(call_all_at_once, count) == sum(range(count))
        for worker, (memory, threads) in zip(members, before, strict=True):
            wait_until(
                lambda w=worker, m=memory, t=threads: (
                    w.call(in_use)[1] <= t + 4 and w.call(in_use)[0] < m + (32 << 20)
                ),
                lambda w=worker, b=(memory, threads): (
                    f"{w.label} had {b} bytes and threads, and has {w.call(in_use)}"
                ),
                10,
                0.1,
            )
        members.shutdown()


def echo_many(to: str, threads: int, times: int) -> int:
    """`threads` threads that call at once; how many right answers came."""
    import torch
    import torch.distributed.rpc as rpc

    right = []

    def work(number: int) -> None:
        for i in range(times):
            value = torch.full((number + 1,), float(i))
            right.append(torch.equal(rpc.rpc_sync(to, echo, args=(value,)), value))

    in_threads(*(functools.partial(work, number) for number in range(threads)))
    return sum(right)


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_thirty_two_threads(group, to):
    assert group[0].call(echo_many, to, 32, 40) == 32 * 40


def test_both_ways_at_once(group):
    group[0].start(echo_many, "worker1", 16, 40)
    group[1].start(echo_many, "worker0", 16, 40)
    assert [worker.result() for worker in group] == [640, 640]


def test_calls_from_callbacks(group):
    assert group[0].call(calls_in_callbacks, 5, 20) == [6] * 20


def bounce(depth: int, timeout: float) -> int:
    """A -> B -> A -> …: each level holds a worker thread while it waits for the next."""
    import torch.distributed.rpc as rpc

    if depth == 0:
        return 0
    other = 1 - rpc.get_worker_info().id
    return 1 + rpc.rpc_sync(other, bounce, args=(depth - 1, timeout), timeout=timeout)


def test_a_chain_of_calls_as_deep_as_there_are_threads(group):
    # 16 threads on each side.
    assert group[0].call(bounce, 32, 20) == 32


def test_a_chain_deeper_than_there_are_threads_ends_with_a_timeout():
    """Nobody is left to serve the deepest call: as with TensorPipe. It must end, and leave order."""
    with Group(2, num_worker_threads=2) as members:
        assert members[0].call(bounce, 4, 20) == 4
        error = members[0].fails(bounce, 6, 1.0)
        assert "RPC ran for more than set timeout" in error.message
        assert members[0].call(bounce, 4, 20) == 4
        members.shutdown()


def test_one_worker_thread():
    with Group(2, num_worker_threads=1) as members:
        assert members[0].call(bounce, 2, 20) == 2
        assert members[0].call(echo_many, "worker1", 8, 20) == 160
        assert members[0].call(echo_many, "worker0", 8, 20) == 160
        assert members[0].call(debug, "agent.thread_pool_size") == 1
        members.shutdown()


def async_chain(depth: int) -> int:
    """As `bounce`, but with async execution no thread is held while a level waits."""
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync("worker1", bounce_async, args=(depth,), timeout=20)


def _bounce_async(depth: int):
    import torch
    import torch.distributed.rpc as rpc

    if depth == 0:
        done = torch.futures.Future()
        done.set_result(0)
        return done
    other = 1 - rpc.get_worker_info().id
    call = rpc.rpc_async(other, bounce_async, args=(depth - 1,))
    return call.then(lambda future: future.wait() + 1)


def bounce_async(depth: int):
    return _bounce_async(depth)


# rpc.functions.async_execution, without importing torch here.
bounce_async._wrapped_async_rpc_function = _bounce_async


def test_async_execution_holds_no_thread():
    with Group(2, num_worker_threads=1) as members:
        assert members[0].call(async_chain, 40) == 40
        members.shutdown()


def burst(count: int) -> int:
    import torch
    import torch.distributed.rpc as rpc

    calls = [rpc.rpc_async("worker1", torch.add, args=(torch.ones(2), i)) for i in range(count)]
    return sum(int(call.wait()[0]) - 1 for call in calls)


def test_a_burst_of_asynchronous_calls(group):
    assert group[0].call(burst, 5000) == sum(range(5000))


def shut_down_with_calls_pending() -> float:
    import torch.distributed.rpc as rpc

    for _ in range(50):
        rpc.rpc_async("worker1", echo, args=(b"x" * 100_000,))
    return leave()


def test_shutdown_waits_for_calls_in_flight():
    with Group(2) as members:
        members[0].start(shut_down_with_calls_pending)
        members[1].start(leave)
        for worker in members:
            worker.result()


BAD_TIMES = [float("nan"), -2.0, -0.001, float("-inf")]
NOT_A_TIME = "timeout must be a number of seconds that is not negative, got "


def bad_timeout(kind: str, timeout: float) -> tuple[str, str]:
    """How a call ends that gives no time, and one after it."""
    import torch
    import torch.distributed.rpc as rpc

    try:
        if kind == "sync":
            rpc.rpc_sync("worker1", echo, args=(5,), timeout=timeout)
        elif kind == "async":
            rpc.rpc_async("worker1", echo, args=(5,), timeout=timeout)
        elif kind == "operator":
            rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1), timeout=timeout)
        elif kind == "self":
            rpc.rpc_sync("worker0", echo, args=(5,), timeout=timeout)
        elif kind == "default":
            rpc._set_rpc_timeout(timeout)
        elif kind == "wait":
            rpc.api._get_current_rpc_agent().barrier(timeout)
    except ValueError as error:
        return str(error), rpc.rpc_sync("worker1", echo, args=("later",))
    return "answered", ""


@pytest.mark.parametrize("kind", ["sync", "async", "operator", "self", "default", "wait"])
@pytest.mark.parametrize("timeout", BAD_TIMES)
def test_what_is_no_time_is_refused(group, kind, timeout):
    text, later = group[0].call(bad_timeout, kind, timeout)
    assert NOT_A_TIME in text
    assert later == "later"


def timeouts_of_other_types() -> None:
    import torch
    import torch.distributed.rpc as rpc

    for function, args in ((echo, (5,)), (torch.add, (torch.ones(2), 1))):
        for timeout in ("3", True):
            for call in (rpc.rpc_sync, rpc.rpc_async):
                with pytest.raises(TypeError, match="timeout must be a number of seconds, got"):
                    call("worker1", function, args=args, timeout=timeout)


def test_a_text_is_no_time(group):
    group[0].call(timeouts_of_other_types)


def values_after_a_bad_timeout(timeout: float) -> tuple[int, int]:
    """How many values this worker owns before and after a remote() to itself that gives no time."""
    import torch.distributed.rpc as rpc

    def owned() -> int:
        return int(rpc._rref_context_get_debug_info()["num_owner_rrefs"])

    before = owned()
    try:
        rpc.remote("worker0", echo, args=(5,), timeout=timeout)
    except ValueError:
        return before, owned()
    return before, -1


@pytest.mark.parametrize("timeout", BAD_TIMES)
def test_a_remote_call_that_is_refused_leaves_no_value(group, timeout):
    before, after = group[0].call(values_after_a_bad_timeout, timeout)
    assert after == before


def leave_badly(timeout: float) -> str:
    import torch.distributed.rpc as rpc

    try:
        rpc.shutdown(timeout=timeout)
    except ValueError as error:
        return str(error)
    return "left"


@pytest.mark.parametrize("timeout", BAD_TIMES)
def test_shutdown_refuses_what_is_no_time(timeout):
    with Group(1) as one:
        assert NOT_A_TIME in one[0].call(leave_badly, timeout)


def barrier_during_call(to: str, timeout: float) -> str:
    """How the barrier of a shutdown ends while a call is in flight."""
    import torch.distributed.rpc as rpc

    call = rpc.rpc_async(to, wait_for_gate)
    try:
        rpc.api._get_current_rpc_agent().barrier(timeout)
        return "passed"
    except RuntimeError as error:
        return str(error)
    finally:
        rpc.rpc_sync(to, open_gate)
        call.wait()


def test_the_time_of_a_shutdown_bounds_all_its_rounds():
    """Each round could wait for as long again, until the calls have ended and it passes."""
    with Group(2) as two:
        for worker, other in zip(two, ("worker1", "worker0"), strict=True):
            worker.start(barrier_during_call, other, 1.0)
        for worker in two:
            assert "gave up after 1000 ms" in worker.result()


def give_up_waiting(timeout: float) -> str:
    import torch.distributed.rpc as rpc

    with pytest.raises(RuntimeError) as caught:
        rpc.api._wait_all_workers(timeout)
    return str(caught.value)


@pytest.mark.parametrize("waiting", [1, 2])
def test_after_a_wait_that_was_given_up_the_workers_meet(waiting):
    """It counted as one that had passed: the shutdown then waited for ever, on all."""
    with Group(3) as group:
        for worker in group[:waiting]:
            worker.start(give_up_waiting, 1.0)
        for worker in group[:waiting]:
            assert "waiting for all workers: gave up after 1000 ms" in worker.result()
        group.shutdown()


@pytest.mark.parametrize("kind", ["sync", "async", "self"])
def test_the_shortest_time_is_not_never(closed_gate, kind):
    text, took = closed_gate[0].call(timed_call, kind, 1e-6)
    assert "RPC ran for more than set timeout (1 ms)" in text
    assert took < 5


def long_default(seconds: float) -> float:
    import torch.distributed.rpc as rpc

    before = rpc.get_rpc_timeout()
    rpc._set_rpc_timeout(seconds)
    try:
        assert rpc.rpc_sync("worker1", echo, args=(5,)) == 5
        return rpc.get_rpc_timeout()
    finally:
        rpc._set_rpc_timeout(before)


@pytest.mark.parametrize("seconds", [float("inf"), 1e12])
def test_a_default_that_torch_cannot_count(group, seconds):
    assert group[0].call(long_default, seconds) == 0


def bad_delay(delay: float) -> None:
    import weft

    weft.Batch(max_delay=delay)


@pytest.mark.parametrize("delay", [float("nan"), float("inf"), -1])
def test_the_delay_of_a_batch(group, delay):
    error = group[0].fails(bad_delay, delay)
    assert error.kind == "ValueError"
    assert "max_delay must not be negative or infinite" in error.message


def wait_for_what_a_stopped_worker_publishes() -> None:
    import weft

    weft.wait_published("worker1/nothing", timeout=0.1)


def test_a_wait_for_what_a_busy_worker_publishes_times_out():
    with Group(2, peer_timeout=60) as members:
        members[1].stop()
        error = members[0].fails(wait_for_what_a_stopped_worker_publishes)
        assert error.kind == "TimeoutError"
        assert error.message == "worker1/nothing was not published within 0.1 s"
        members[1].kill()
