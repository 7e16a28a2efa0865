"""Destructors that make calls: run by the garbage collector, and by the last reference to an RRef."""

from __future__ import annotations

import gc
import threading

import pytest
from threads import in_threads
from waiting import wait_for
from workers import Group

ROUNDS = 40


def echo(value):
    return value


def peer() -> str:
    import torch.distributed.rpc as rpc

    me = rpc.get_worker_info().name
    return next(i.name for i in rpc.api._get_current_rpc_agent().get_worker_infos() if i.name != me)


class Calls:
    """Calls another worker when it goes. In a cycle, so that only the collector lets go of it."""

    ended = 0

    def __init__(self, to: str, cycle: bool = True) -> None:
        self.to = to
        self.itself = self if cycle else None

    def __del__(self) -> None:
        import torch
        import torch.distributed.rpc as rpc

        assert rpc.rpc_sync(self.to, echo, args=(3,)) == 3
        assert rpc.rpc_sync(self.to, torch.neg, args=(torch.ones(400),)).sum() == -400
        Calls.ended += 1


def first_call() -> int:
    """The first Python call of this process, with a collection within an import that it makes."""
    import builtins

    import torch.distributed.rpc as rpc

    to, made, upstream = peer(), 5, builtins.__import__

    def collects(name, *rest, **more):
        if name == "torch.distributed.rpc.rref_proxy":  # asked for by that call only
            gc.collect()
        return upstream(name, *rest, **more)

    gc.disable()
    for _ in range(made):
        Calls(to)
    builtins.__import__ = collects
    try:
        assert rpc.rpc_sync(to, echo, args=(1,)) == 1
    finally:
        builtins.__import__ = upstream
        gc.enable()
    gc.collect()
    return made - Calls.ended


def test_the_collector_may_run_within_the_first_call():
    with Group(2, rpc_timeout=60) as members:
        assert members[0].call(first_call, timeout=20) == 0
        members.shutdown()


def hold(count: int) -> None:
    import torch.distributed.rpc as rpc

    me = rpc.get_worker_info().name
    hold.rrefs = [rpc.remote(peer(), Calls, args=(me, False)) for _ in range(count)]
    for rref in hold.rrefs:
        rref._get_future().wait()


def let_go() -> None:
    hold.rrefs.clear()


def ended() -> int:
    return Calls.ended


def test_values_that_call_back_when_they_go_do_not_take_all_threads():
    with Group(2, rpc_timeout=60, num_worker_threads=2) as members:
        members.all(hold, 12)
        members.all(let_go)
        wait_for(lambda: members.all(ended), [12, 12], "how many destructors ended in each")
        members.shutdown()


def collect_and_call(rounds: int) -> None:
    import torch
    import torch.distributed.rpc as rpc

    to, me = peer(), rpc.get_worker_info().name
    over = threading.Event()

    class Holder:
        def __init__(self) -> None:
            self.calls = Calls(to)
            self.itself = self
            self.value = rpc.remote(to, Calls, args=(me,))
            self.plain = rpc.remote(to, Calls, args=(me, False))
            self.tensor = rpc.remote(to, torch.add, args=(torch.ones(400), 1))
            self.later = rpc.rpc_async(to, echo, args=(torch.ones(400),))

    def collect() -> None:
        for _ in range(rounds):
            Holder()
            Holder()
            gc.collect()
        over.set()

    def call() -> None:
        while not over.is_set():
            assert rpc.rpc_sync(to, echo, args=([torch.ones(400)],))[0].sum() == 400
            assert rpc.remote(to, torch.neg, args=(torch.ones(400),)).to_here().sum() == -400
            gc.collect()

    in_threads(collect, call, call)
    gc.collect()


@pytest.mark.parametrize("threshold", [50, 700])
def test_a_collector_beside_threads_that_call_never_stalls(threshold):
    with Group(2, rpc_timeout=60) as members:
        members.all(gc_threshold, threshold)
        members.all(collect_and_call, ROUNDS, timeout=60)
        # A collection that another thread runs may not have come to their end.
        enough = [True, True]
        wait_for(
            lambda: [count > ROUNDS for count in members.all(ended)], enough, "destructors ran"
        )
        members.all(gc_threshold, 700)
        members.shutdown()


def gc_threshold(first: int) -> None:
    gc.set_threshold(first, 2, 2)
