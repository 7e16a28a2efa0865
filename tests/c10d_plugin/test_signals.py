"""Signals' handlers that run while their own thread is in an operation: what they raise, and call."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from ranks import PATHS, Ranks

# What ranks run.


@contextlib.contextmanager
def handler(handle: Callable[[], object]) -> Iterator[None]:
    """Runs it on this thread, the main one, after a moment."""
    previous = signal.signal(signal.SIGALRM, lambda *_: handle())
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, previous)


def handler_that_calls_collectives() -> None:
    """Each call is refused at once, and the operation goes on; another group's is none of its."""
    store, world, other = dist.distributed_c10d._get_default_store(), [0, 1], dist.new_group()
    calls = (
        dist.barrier,
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.all_reduce(torch.ones(2), async_op=True),
        lambda: dist.all_reduce_coalesced([torch.ones(2)]),
    )
    refused = []

    def handle() -> None:
        for call in calls:
            with pytest.raises(RuntimeError, match=r"handler .* is inside weft:all_reduce of the"):
                call()
            refused.append(call)
        store.set("handled", "yes")
        dist.barrier(other)

    tensor = torch.ones(3)
    if dist.get_rank() == 0:
        with handler(handle):
            dist.all_reduce(tensor)
        assert len(refused) == len(calls)
    else:
        store.wait(["handled"])
        dist.barrier(other)
        dist.all_reduce(tensor)
    assert tensor.eq(len(world)).all()
    dist.barrier()  # the ranks are in step


def handler_that_raises(refused: bool) -> tuple[str, float]:
    """What ends the operation, and after how long."""
    store = dist.distributed_c10d._get_default_store()

    def handle() -> None:
        if refused:
            dist.barrier()
        raise TimeoutError("the node is to go")

    if dist.get_rank() == 0:
        began = time.monotonic()
        with handler(handle), pytest.raises(Exception, match=r".") as error:
            dist.all_reduce(torch.ones(3))
        took = time.monotonic() - began
        store.set("raised", "yes")
        return f"{error.type.__name__}: {error.value}", took
    store.wait(["raised"])
    began = time.monotonic()
    with pytest.raises(dist.DistBackendError) as error:
        for _ in range(2):  # rank 0's part of the first may have come
            dist.all_reduce(torch.ones(3))
    return str(error.value), time.monotonic() - began


@pytest.mark.parametrize("path", PATHS)
def test_a_handler_cannot_call_collectives_of_the_group_that_its_thread_is_in(path):
    with Ranks(2, PATHS[path]) as ranks:
        ranks.all(handler_that_calls_collectives, timeout=20)


@pytest.mark.parametrize("refused", [False, True], ids=["its own error", "a refused call's"])
@pytest.mark.parametrize("path", PATHS)
def test_what_a_handler_raises_ends_the_operation(path, refused):
    with Ranks(2, PATHS[path]) as ranks:
        (own, own_took), (others, others_took) = ranks.all(handler_that_raises, refused)
    wanted = "RuntimeError: weft:barrier: a signal's" if refused else "TimeoutError: the node is"
    assert own.startswith(wanted), own
    assert "rank 0 was interrupted (by Ctrl-C or another signal) while it ran" in others, others
    assert own_took < 3 and others_took < 3
