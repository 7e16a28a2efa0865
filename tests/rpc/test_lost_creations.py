"""An RRef that a third worker asks for, whose creator was lost before its call had reached the owner:
the owner answers with an error that names the creator."""

from __future__ import annotations

import signal

import pytest
from waiting import wait_until
from workers import BOUND, Group

QUICK = {"heartbeat_interval": 0.2, "peer_timeout": 2.5, "reconnect_timeout": 2.5}
CREATOR, ASKER, OWNER = range(3)


# What workers run.


def never_made() -> tuple:
    """A reference to a value of OWNER that no call creates, as when the call was lost on its way."""
    import torch.distributed.rpc as rpc

    never_made.kept = rpc.remote("worker2", list)
    never_made.kept.to_here()
    owner, created_on, local_id, *rest = never_made.kept._serialize()
    return owner, created_on, local_id + 1, *rest  # the id of the fork, so of no value


def ask_for(reference: tuple) -> str:
    """What became of it."""
    from torch._C._distributed_rpc import PyRRef

    rref = PyRRef._deserialize(reference)
    print("asks", flush=True)
    try:
        return str(rref.to_here(timeout=30))
    except RuntimeError as error:
        return str(error)


def add(to: str) -> str:
    import torch
    import torch.distributed.rpc as rpc

    try:
        return str(rpc.rpc_sync(to, torch.add, args=(torch.ones(()), 1), timeout=30).item())
    except RuntimeError as error:
        return str(error)


def holders() -> set[str]:
    """Who refers to what this worker owns."""
    import weft

    return {name for info in weft.rref_report() for name in info.holders}


# Tests.


def ends_with_an_error(asker) -> None:
    text = asker.result(15)
    assert "was lost before it had created the value" in text, text
    assert "worker 'worker0'" in text and "worker 'worker2'" in text, text


@pytest.mark.parametrize("asked", ["before the loss", "after the loss"])
def test_the_creator_has_died(asked):
    with Group(3, **QUICK) as group:
        reference = group[CREATOR].call(never_made)
        assert "worker0" in group[OWNER].call(holders)
        if asked == "before the loss":
            group[ASKER].start(ask_for, reference)
            group[ASKER].wait_for_output("asks")
            assert not group[ASKER].has_answered_within(1)
            group[CREATOR].kill()
        else:
            group[CREATOR].kill()
            lost = lambda: "worker0" in group[OWNER].output()  # noqa: E731
            wait_until(lost, lambda: f"it is lost\n{group[OWNER].output()}", BOUND)
            released = lambda: "worker0" not in group[OWNER].call(holders)  # noqa: E731
            wait_until(released, "what the creator held is released")
            group[ASKER].start(ask_for, reference)
        ends_with_an_error(group[ASKER])


def test_the_creator_is_back():
    with Group(3, **QUICK) as group:
        assert group[OWNER].call(add, "worker0") == "2.0"
        reference = group[CREATOR].call(never_made)
        group[CREATOR].stop()
        try:
            assert "is lost" in group[OWNER].call(add, "worker0")
        finally:
            group[CREATOR].signal(signal.SIGCONT)
        answers = lambda worker, to: group[worker].call(add, to) == "2.0"  # noqa: E731
        wait_until(lambda: answers(OWNER, "worker0"), lambda: "calls work again", 20)
        wait_until(lambda: answers(CREATOR, "worker2"), lambda: "both ways", 20)
        group[ASKER].start(ask_for, reference)
        ends_with_an_error(group[ASKER])
