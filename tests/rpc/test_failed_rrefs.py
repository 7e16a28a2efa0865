"""RRefs that could not be created: each says so itself, however many failed before."""

from __future__ import annotations

import pickle
import time
import weakref

import pytest
from rref_workers import Group as FaultyGroup
from rref_workers import leave
from waiting import wait_until
from workers import Group

COUNT = 30
MANY = 40_000
SOON = 10.0  # seconds; an owner that does not know an RRef would be asked for the timeout of calls


def what_they_say(to: str, count: int, use) -> list[str]:
    """What `use` of each of these RRefs says, which the callee's policy refuses to make."""
    import torch.distributed.rpc as rpc

    said = []
    for _ in range(count):
        failing = rpc.remote(to, len, args=([],))
        try:
            failing._get_future().wait()
        except RuntimeError:
            try:
                use(to, failing)
            except RuntimeError as error:
                said.append(str(error))
    return said


def fetch(to: str, rref) -> None:
    rref.to_here(timeout=SOON)


def pass_on(to: str, rref) -> None:
    import torch.distributed.rpc as rpc

    rpc.rpc_sync(to, id, args=(rref,), timeout=SOON)


@pytest.mark.parametrize("use", [fetch, pass_on])
def test_each_failed_rref_says_why(use) -> None:
    with Group(2, request_policy="script") as group:
        said = group[0].call(what_they_say, "worker1", 5, use)
        assert len(said) == 5
        assert all("RRef creation via rpc.remote() failed: " in text for text in said), said
        group.shutdown()


def create_under_the_profiler() -> float:
    import torch
    import torch.distributed.rpc as rpc

    x = torch.ones(3, 4)
    with torch.autograd.profiler_legacy.profile(record_shapes=True):
        return rpc.remote("worker1", torch.add, args=(x, x)).to_here().sum().item()


@pytest.mark.parametrize("policy", ["any", "registered", "script"])
def test_a_profile_with_shapes_confirms_the_value(policy) -> None:
    """It has lists of numbers, whose type the pickle names, beside the answer."""
    with Group(2, request_policy=policy) as group:
        assert group[0].call(create_under_the_profiler) == 24.0
        group.shutdown()


def remote_to_here(to: str, count: int) -> list[str]:
    """What to_here() says of RRefs whose creation fails; it is called before that."""
    import torch.distributed.rpc as rpc

    said = []
    for _ in range(count):
        try:
            rpc.remote(to, len, args=([],)).to_here(timeout=0)
        except RuntimeError as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("to", ["worker0", "worker1"])
def test_a_wait_for_a_value_ends_when_its_creation_fails(to) -> None:
    faults = {"messages_to_fail": ["PYTHON_REMOTE_CALL"], "num_fail_sends": COUNT}
    with FaultyGroup(2, faults=faults) as group:
        said = group[0].call(remote_to_here, to, COUNT)
        assert len(said) == COUNT
        assert all("RRef creation via rpc.remote() failed: " in text for text in said), said
        group.all(leave)


def remote_after_the_loss(to: str) -> str:
    """What a remote() says that is made between the loss of its owner and the cleaning up after it,
    and ends only after that."""
    import torch
    import torch.distributed.rpc as rpc

    with pytest.raises(RuntimeError):
        rpc.rpc_sync(to, torch.add, args=(torch.ones(1), 1))
    late = rpc.remote(to, len, args=([],))
    try:
        late._get_future().wait()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def test_a_creation_that_ends_late_ends_for_those_who_wait() -> None:
    faults = {"messages_to_delay": {"PYTHON_REMOTE_CALL": 2.5}}
    with FaultyGroup(2, faults=faults, heartbeat_interval=0.2, peer_timeout=2) as group:
        group[1].kill()
        assert "worker1" in group[0].call(remote_after_the_loss, "worker1")


def make_many(to: str, count: int) -> None:
    """RRefs whose creation `to`, which is stopped, does not answer."""
    import torch
    import torch.distributed.rpc as rpc

    _pending[:] = [rpc.remote(to, torch.add, args=(torch.ones(1), 1)) for _ in range(count)]


def wait_until_all_failed() -> float:
    """How long it takes once the first has failed."""
    began = 0.0
    for rref in _pending:
        with pytest.raises(RuntimeError):
            rref._get_future().wait()
        began = began or time.monotonic()
    _pending.clear()
    return time.monotonic() - began


_pending: list = []


def test_many_that_fail_at_once_take_a_time_that_is_theirs() -> None:
    """None is looked for among all: that would take minutes."""
    with Group(2, peer_timeout=60, reconnect_timeout=1, rpc_timeout=90) as group:
        group[1].stop()
        group[0].call(make_many, "worker1", MANY)
        group[1].kill()
        took = group[0].call(wait_until_all_failed, timeout=120)
        assert took < 20, took


def send_to_nobody(how: str) -> list:
    """What is left here of an RRef that was an argument of calls that could not be made."""
    import torch.distributed.rpc as rpc

    for arguments in ({"to": "nobody"}, {"to": 77}, {"to": "worker0", "timeout": "soon"}):
        rref = rpc.RRef(how)
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            getattr(rpc, how)(func=len, args=(rref,), **arguments)
    del rref
    import weft

    return weft.rref_report()


def pickle_in_vain(how: str, owner: str) -> list:
    """What is left here of an RRef and a tensor beside an argument that cannot be pickled."""
    import torch
    import torch.distributed.rpc as rpc

    import weft

    rref = rpc.remote(owner, int, args=(3,))
    rref.to_here()
    tensor = torch.ones(3)
    gone = weakref.ref(tensor)
    for _ in range(2):
        with pytest.raises((AttributeError, pickle.PicklingError)):
            getattr(rpc, how)("worker0", len, args=(rref, tensor, lambda: 1))
    del rref, tensor
    assert gone() is None
    wait_until(lambda: not weft.rref_report(), "the RRef is gone")
    return weft.rref_report()


@pytest.mark.parametrize("owner", ["worker0", "worker1"])
@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async", "remote"])
def test_what_stands_beside_an_argument_that_cannot_be_pickled_is_let_go(how, owner) -> None:
    with Group(2) as group:
        assert group[1].call(pickle_in_vain, how, owner) == []
        began = time.monotonic()
        group.shutdown()
        assert time.monotonic() - began < SOON  # not torch's 100 s


def create_here_in_vain() -> list:
    import torch
    import torch.distributed.rpc as rpc

    import weft

    (freed := torch.ones(3)).untyped_storage().resize_(0)
    for function in (torch.neg, id):
        with pytest.raises(RuntimeError, match="of the 12 bytes that its elements need"):
            rpc.remote("worker1", function, args=(freed,))
    return weft.rref_report()


def test_a_value_of_its_own_that_a_worker_cannot_be_asked_for_is_let_go() -> None:
    with Group(2) as group:
        assert group[1].call(create_here_in_vain) == []
        began = time.monotonic()
        group.shutdown()
        assert time.monotonic() - began < SOON


@pytest.mark.parametrize("how", ["rpc_sync", "rpc_async"])
def test_a_call_that_cannot_be_made_keeps_no_rref(how) -> None:
    with Group(2) as group:
        assert group[1].call(send_to_nobody, how) == []
        group.shutdown()
