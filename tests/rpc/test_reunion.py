"""Workers that lost each other and both live: stopped for long, they meet again by themselves."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from waiting import time_for_what_must_not_happen, wait_until
from workers import BOUND, Group, Workers, join

QUICK = {"heartbeat_interval": 0.2, "peer_timeout": 2.5, "reconnect_timeout": 2.5}
_kept: list[object] = []
_noted: list[int] = []


# What workers run.


def note(number: int) -> int:
    _noted.append(number)
    return number


def noted() -> list[int]:
    return _noted


def ask(to: str, number: int) -> str:
    """What became of the call."""
    import torch.distributed.rpc as rpc

    try:
        return str(rpc.rpc_sync(to, note, args=(number,), timeout=30))
    except RuntimeError as error:
        return str(error)


def make(value):
    import torch

    return torch.full((2,), float(value))


def keep_rref(to: str, value: int) -> float:
    import torch.distributed.rpc as rpc

    _kept.append(rpc.remote(to, make, args=(value,)))
    return _kept[-1].to_here().sum().item()


def use_kept(index: int) -> tuple[str, float]:
    started = time.monotonic()
    try:
        text = str(_kept[index].to_here().sum().item())
    except RuntimeError as error:
        text = str(error)
    return text, time.monotonic() - started


def forget() -> None:
    _kept.clear()


def holders_here() -> int:
    import weft

    me = weft.rpc.rpc.get_worker_info().name
    return sum(len(info.holders) for info in weft.rref_report() if info.owner == me)


def begin_graph(owner: str) -> None:
    """A context of distributed autograd that goes on."""
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    context = dist_autograd.context()
    x = torch.ones(2, requires_grad=True)
    _kept.append((context, context.__enter__(), rpc.rpc_sync(owner, torch.mul, args=(x, x))))


def end_graph() -> str:
    """What its backward says."""
    import torch.distributed.autograd as dist_autograd

    context, number, product = _kept.pop()
    try:
        dist_autograd.backward(number, [product.sum()])
    except RuntimeError as error:
        return str(error)
    finally:
        context.__exit__(None, None, None)
    return "nothing"


def contexts_here() -> int:
    import torch.distributed.autograd as dist_autograd

    return int(dist_autograd._get_debug_info()["num_autograd_contexts"])


# Tests.


class Dynamic(Workers):
    def __init__(self, count: int, **options) -> None:
        super().__init__(count)
        with self.closed_on_failure():
            for rank, worker in enumerate(self):
                worker.call(join, rank, None, self.meeting, **options)

    def shutdown(self) -> None:
        for worker in self:
            worker.call(leave_group)


def leave_group() -> None:
    import torch.distributed.rpc as rpc

    rpc.shutdown()


def _stop_and_go_on(
    group: Workers, stopped: int, released: Callable[[], bool] = lambda: True
) -> None:
    """Leaves both at the end of the outage, when calls work again both ways.

    `released`: what the other worker has done before the outage ends.
    """
    other, name = group[1 - stopped], f"worker{stopped}"
    group[stopped].stop()
    try:
        text = other.call(ask, name, 100)
        assert "is lost" in text and name in text, text
        time_for_what_must_not_happen(1)
        for number in (101, 102):
            started = time.monotonic()
            assert "is lost" in other.call(ask, name, number)
            assert time.monotonic() - started < 10, "it fails at once"
        wait_until(released, lambda: "it is released", BOUND)
    finally:
        group[stopped].signal(signal.SIGCONT)
    wait_until(lambda: other.call(ask, name, 200) == "200", lambda: "calls work again", 20)
    me = f"worker{1 - stopped}"
    wait_until(lambda: group[stopped].call(ask, me, 300) == "300", lambda: "both ways", 20)


@pytest.mark.parametrize("kind", [Group, Dynamic])
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_worker_that_was_stopped_for_long_comes_back(stopped, kind):
    with kind(2, **QUICK) as group:
        other, name = group[1 - stopped], f"worker{stopped}"
        me = f"worker{1 - stopped}"
        assert other.call(keep_rref, name, 1) == 2
        assert group[stopped].call(keep_rref, me, 2) == 4
        _stop_and_go_on(group, stopped)
        # References of before say what happened, at once.
        for worker, owner in ((other, name), (group[stopped], me)):
            text, took = worker.call(use_kept, 0)
            assert f"worker '{owner}'" in text and "was lost for" in text, text
            assert "what it owned for this worker was released" in text, text
            assert took < 10
        # New ones work, and what was held across the outage is released.
        assert other.call(keep_rref, name, 3) == 6
        assert group[stopped].call(keep_rref, me, 4) == 8
        wait_until(lambda: other.call(holders_here) == 1, lambda: "it is released", BOUND)
        wait_until(lambda: group[stopped].call(holders_here) == 1, lambda: "it is released", BOUND)
        assert other.call(use_kept, 1)[0] == "6.0"
        # What failed was not run later, and nothing twice.
        ran = group[stopped].call(noted)
        assert 101 not in ran and 102 not in ran
        before = ran[: ran.index(200)]
        assert before in ([], [100]), ran
        for worker in group:
            worker.call(forget)
        group.shutdown()


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_graph_of_before_an_outage_goes_on_or_says_who_was_lost(stopped):
    with Group(2, **QUICK) as group:
        group[0].call(begin_graph, "worker1")
        # An outage that ends sooner leaves the graph as it is.
        _stop_and_go_on(group, stopped, lambda: stopped == 1 or group[1].call(contexts_here) == 0)
        said = group[0].call(end_graph)
        if stopped == 0:
            assert "worker1" in said and "had lost worker 'worker0'" in said, said
        else:
            assert said == "nothing", "worker1 was never without worker0 for long"
        group.shutdown()


def test_a_graph_goes_on_where_it_was_begun():
    """The other worker tells it that the graph is over, again and again until it hears that."""
    with Group(2, **QUICK) as group:
        group[0].call(begin_graph, "worker1")
        group[0].stop()
        try:
            assert "is lost" in group[1].call(ask, "worker0", 100)
            wait_until(lambda: group[1].call(contexts_here) == 0, lambda: "it is released", 20)
        finally:
            group[0].signal(signal.SIGCONT)
        wait_until(lambda: group[0].call(ask, "worker1", 200) == "200", lambda: "calls work", 20)
        time_for_what_must_not_happen(3)  # torch says it again after 1.5 s, and 2.25 s later
        assert group[0].call(contexts_here) == 1
        assert group[0].call(ask, "worker1", 300) == "300"
        assert "had lost worker 'worker0'" in group[0].call(end_graph)
        group.shutdown()


def test_again_and_again():
    with Group(2, **QUICK) as group:
        assert group[0].call(ask, "worker1", 1) == "1", "they are connected"
        for turn in range(3):
            _stop_and_go_on(group, turn % 2)
        group.shutdown()
