"""RRefs that could not be created: each says so itself, however many failed before."""

from __future__ import annotations

import pytest
from workers import Group

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
