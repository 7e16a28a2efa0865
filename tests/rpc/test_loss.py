"""Peers that die, stop or leave: who waits for them is told at once, with their name; the rest go on."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from ports import free_port
from waiting import takes_with_the_gil, wait_for
from workers import Group, Workers, join, leave

SOON = 4.0  # seconds after a kill -9 by which every call to the dead must have failed; silence: 5
_held: list[tuple[str, float]] = []  # how each held call ended, and when
_one_ended = threading.Condition()


# What workers run.


def block() -> None:
    """Holds the thread that serves it, until its process is killed (or a minute has passed)."""
    threading.Event().wait(60)


def echo(value):
    return value


def make_slowly() -> int:
    threading.Event().wait(60)
    return 1


def _ended(how: str) -> None:
    with _one_ended:
        _held.append((how, time.monotonic()))
        _one_ended.notify_all()


def hold_calls(to: str, count: int, numel: int = 0) -> None:
    """Makes calls that stay pending; `outcomes` tells how they ended, and when."""
    import torch
    import torch.distributed.rpc as rpc

    def note(future):
        try:
            future.value()
            _ended("answered")
        except RuntimeError as error:
            _ended(str(error))

    _held.clear()
    for _ in range(count):
        arguments = (torch.ones(numel),) if numel else ()
        call = rpc.rpc_async(to, echo if numel else block, args=arguments, timeout=0)
        call.then(note)


def hold_rrefs(to: str, count: int) -> None:
    """to_here() of values that the owner is still making, each in a thread of its own."""
    import torch.distributed.rpc as rpc

    def wait(rref):
        try:
            rref.to_here(timeout=0)
            _ended("answered")
        except RuntimeError as error:
            _ended(str(error))

    _held.clear()
    for _ in range(count):
        rref = rpc.remote(to, make_slowly, timeout=0)
        threading.Thread(target=wait, args=(rref,), daemon=True).start()


def outcomes(count: int, bound: float = 20) -> list[tuple[str, float]]:
    """How the held calls ended: all `count` of them, or those that did within the bound."""
    with _one_ended:
        _one_ended.wait_for(lambda: len(_held) >= count, bound)
        return list(_held)


def hold_creations(to: str, count: int) -> None:
    """Waits for the creation of RRefs (a future of its own) that the owner is still making."""
    import torch
    import torch.distributed.rpc as rpc

    def wait(created):
        try:
            created.wait()
            _ended("answered")
        except RuntimeError as error:
            _ended(str(error))

    _held.clear()
    for index in range(count):
        of_torch = index % 2 == 1
        function, arguments = (torch.add, (torch.ones(1), 1)) if of_torch else (echo, (1,))
        created = rpc.remote(to, function, args=arguments, timeout=0)._get_future()
        threading.Thread(target=wait, args=(created,), daemon=True).start()


def active_calls() -> int:
    import torch.distributed.rpc as rpc

    return int(rpc.api._get_current_rpc_agent().get_debug_info()["agent.client_active_calls"])


def threads_serving() -> int:
    import torch.distributed.rpc as rpc

    info = rpc.api._get_current_rpc_agent().get_debug_info()
    return int(info["agent.thread_pool_size"]) - int(info["agent.num_idle_threads"])


def call(to: str, count: int = 1) -> int:
    import torch
    import torch.distributed.rpc as rpc

    return sum(
        int(rpc.rpc_sync(to, torch.add, args=(torch.ones(1), 1)).item()) for _ in range(count)
    )


def call_time(to: str) -> tuple[str, float]:
    """The error of a call that must fail, and how long that took."""
    began = time.monotonic()
    try:
        call(to)
    except RuntimeError as error:
        return str(error), time.monotonic() - began
    return "answered", time.monotonic() - began


def says_lost(text: str, name: str, rank: int) -> bool:
    return f"worker '{name}' (rank {rank})" in text and (
        "lost" in text or "cannot be reached" in text
    )


# Tests.


@pytest.mark.parametrize("hold", [hold_calls, hold_rrefs])
@pytest.mark.parametrize("environment", [{}, {"WEFT_UNIX_SOCKET": "0"}], ids=["unix", "tcp"])
def test_kill_9_fails_everything_pending(hold, environment):
    with Group(3, environment) as group:
        count = 20  # more than num_worker_threads: some are served, some wait there
        group[0].call(hold, "worker2", count)
        wait_for(lambda: group[2].call(threads_serving), 16, "threads that serve")
        killed = time.monotonic()
        group[2].kill()
        ended = group[0].call(outcomes, count)
        assert len(ended) == count
        for text, at in ended:
            assert says_lost(text, "worker2", 2), text
            assert at - killed < SOON
        # Once known, a new call fails at once; the living are as they were.
        text, took = group[0].call(call_time, "worker2")
        assert says_lost(text, "worker2", 2)
        assert took < 2
        assert group[0].call(call, "worker1", 10) == 20
        assert group[1].call(call, "worker0", 10) == 20
        wait_for(lambda: group[0].call(active_calls), 0, "calls under way")
        group.shutdown(ranks=(0, 1), timeout=15)


def test_creations_of_rrefs_on_a_dead_peer_fail():
    """Those under way at the kill (a stopped peer answers nothing), and those after it."""
    with Group(2) as group:
        group[0].call(call, "worker1")
        group[1].stop()
        for kill in (True, False):
            group[0].call(hold_creations, "worker1", 20)
            if kill:
                group[1].kill()
            ended = group[0].call(outcomes, 20)
            assert len(ended) == 20, "the others still wait"
            for text, _ in ended:
                assert says_lost(text, "worker1", 1), text


def test_a_dead_peer_that_was_never_called():
    """The first call to it finds nobody."""
    with Group(3) as group:
        group[2].kill()
        text, took = group[1].call(call_time, "worker2")
        assert says_lost(text, "worker2", 2)
        assert took < SOON
        assert group[1].call(call, "worker0") == 2


def test_kill_9_fails_what_is_still_queued():
    """A stopped peer reads nothing: calls of 8 MB pile up here, and fail with it."""
    with Group(2, peer_timeout=60) as group:
        assert group[0].call(call, "worker1") == 2
        group[1].stop()
        group[0].call(hold_calls, "worker1", 20, 2 << 20)
        killed = time.monotonic()
        group[1].kill()
        ended = group[0].call(outcomes, 20)
        assert len(ended) == 20
        assert all(says_lost(text, "worker1", 1) and at - killed < SOON for text, at in ended), (
            ended
        )


def test_a_stopped_peer_is_found_by_its_silence():
    options = {"heartbeat_interval": 0.2, "peer_timeout": 3.0}
    with Group(3, **options) as group:
        group[0].call(hold_calls, "worker1", 3)
        wait_for(lambda: group[1].call(threads_serving), 3, "threads that serve")
        stopped = time.monotonic()
        group[1].stop()
        ended = group[0].call(outcomes, 3)
        assert len(ended) == 3
        for text, at in ended:
            assert says_lost(text, "worker1", 1), text
            assert 0 < at - stopped < 30
        assert group[0].call(call, "worker2", 10) == 20
        group[1].kill()


def test_a_busy_peer_is_not_lost():
    """Its interpreter is held for longer than peer_timeout; heartbeats need no interpreter."""
    options = {"heartbeat_interval": 0.2, "peer_timeout": 3.0}
    with Group(2, **options) as group:
        assert group[0].call(hold_interpreter, "worker1", 5.0) == "done"
        group.shutdown()


def hog(seconds: float) -> str:
    takes_with_the_gil(seconds)
    return "done"


def hold_interpreter(to: str, seconds: float) -> str:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync(to, hog, args=(seconds,))


@pytest.mark.parametrize("known", [True, False], ids=["called", "never-called"])
def test_shutdown_after_a_loss_ends_and_names_the_lost(known):
    with Group(3, heartbeat_interval=0.2, peer_timeout=2.0) as group:
        if known:
            group[0].call(call, "worker2")
            group[1].call(call, "worker2")
        group[2].kill()
        group.shutdown(ranks=(0, 1), timeout=15)
        for rank in (0, 1):
            assert "worker 'worker2' (rank 2)" in group[rank].output()


def test_the_leader_of_the_group_may_die():
    """Rank 0 is the smallest name, the leader of torch's own gathering at shutdown."""
    with Group(3, heartbeat_interval=0.2, peer_timeout=2.0) as group:
        group[1].call(call, "worker0")
        group[0].kill()
        assert group[1].call(call, "worker2") == 2
        group.shutdown(ranks=(1, 2), timeout=15)


def says_who_served(error, where: str) -> bool:
    return error.kind == "DistNetworkError" and (
        f"the process that serves the Store at {where} (usually rank 0) has ended" in error.message
    )


def test_the_death_of_the_stores_server_is_said_by_shutdown():
    where = f"127.0.0.1:{free_port()}"
    with Workers(2) as workers:
        for rank, worker in enumerate(workers):
            worker.start(join, rank, 2, f"tcp://{where}")
        for worker in workers:
            worker.result()
        workers[0].kill()
        assert says_who_served(workers[1].fails(leave), where)


def test_the_death_of_the_stores_server_is_said_while_the_group_forms():
    where = f"127.0.0.1:{free_port()}"
    with Workers(2) as workers:
        for rank, worker in enumerate(workers):
            worker.start(join, rank, 3, f"tcp://{where}")
        workers[1].wait_for_output("waits for rank 2")
        workers[0].kill()
        assert says_who_served(workers[1].failure(), where)


def test_a_death_while_others_shut_down():
    with Group(3, heartbeat_interval=0.2, peer_timeout=2.0) as group:
        group[0].call(call, "worker2")
        group[0].start(leave)
        group[1].start(leave)
        group[2].kill()
        for rank in (0, 1):
            group[rank].result(15)
            assert "worker 'worker2' (rank 2)" in group[rank].output()


def test_shutdown_with_a_timeout_names_who_is_missing():
    with Group(2) as group:
        error = group[0].fails(leave, True, 1)
        assert "worker 'worker1' (rank 1)" in error.message
        assert "gave up" in error.message


def test_one_worker_leaves_without_the_others():
    with Group(3) as group:
        group[0].call(hold_calls, "worker2", 3)
        wait_for(lambda: group[2].call(threads_serving), 3, "threads that serve")
        left = time.monotonic()
        group[2].start(leave, graceful=False)
        ended = group[0].call(outcomes, 3)
        assert len(ended) == 3
        for text, at in ended:
            assert "worker 'worker2' (rank 2) has shut down or its program" in text, text
            assert at - left < 3
        for rank in (0, 1):
            text, took = group[rank].call(call_time, "worker2")
            assert "worker 'worker2' (rank 2)" in text
            assert took < SOON
        assert group[0].call(call, "worker1") == 2
        group[2].kill()  # it would wait for its blocked threads


def test_calls_after_ones_own_shutdown():
    with Group(2) as group:
        group.shutdown()
        text, _ = group[0].call(call_time, "worker1")
        assert "RPC has not been initialized" in text


def test_many_kills_of_many_peers():
    """Half of eight workers die at once, all of them talking; the other half goes on."""
    with Group(8) as group:
        assert group.all(call_everyone, 8, 3) == [3 * 7] * 8
        for rank in (4, 5, 6, 7):
            group[rank].signal(signal.SIGKILL)
        for rank in range(4):
            group[rank].start(call_everyone, 4, 20)
        for rank in range(4):
            assert group[rank].result() == 20 * 3
        group.shutdown(ranks=range(4), timeout=20)


def call_everyone(world: int, times: int) -> int:
    import torch.distributed.rpc as rpc

    me = rpc.get_worker_info().id
    futures = [
        rpc.rpc_async(to, echo, args=(1,)) for _ in range(times) for to in range(world) if to != me
    ]
    return sum(future.wait() for future in futures)
