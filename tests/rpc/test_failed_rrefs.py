"""RRefs that could not be created: each says so itself, however many failed before."""

from __future__ import annotations

import pytest
from rref_workers import Group as FaultyGroup
from rref_workers import leave
from workers import Group

COUNT = 30
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
        for worker in group:
            worker.start(leave)
        for worker in group:
            worker.result()
