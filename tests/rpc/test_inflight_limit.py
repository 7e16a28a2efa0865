"""max_inflight_bytes: what a peer's requests may take here until they are answered."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.rpc as rpc
from waiting import wait_for
from workers import Group


def echo(value: Any) -> Any:
    return value


def over_the_limit() -> str:
    try:
        rpc.rpc_sync("worker1", echo, args=(torch.ones(1 << 20),), timeout=20)
    except RuntimeError as error:
        assert rpc.rpc_sync("worker1", echo, args=(5,)) == 5
        return str(error)
    return "answered"


def test_more_than_one_peer_may_hold_here_is_refused():
    """max_inflight_bytes refuses one request and keeps the link."""
    with Group(2, per_rank=[{}, {"max_inflight_bytes": 1 << 20}]) as members:
        text = members[0].call(over_the_limit)
        assert "max_inflight_bytes (1048576)" in text
        assert "RESOURCE_EXHAUSTED" in text
        assert "worker 'worker1' (rank 1)" in text
        members.shutdown()


_LATER: list[torch.futures.Future] = []


@rpc.functions.async_execution
def answered_later(tensor: torch.Tensor) -> torch.futures.Future:
    _LATER.append(torch.futures.Future())
    return _LATER[-1]


def answer_now() -> int:
    for future in _LATER:
        future.set_result(True)
    return len(_LATER)


def waiting() -> int:
    return len(_LATER)


def begin_two_and_a_third() -> tuple[str, list[bool]]:
    arguments = (torch.ones(100_000),)
    first = [rpc.rpc_async("worker1", answered_later, arguments, timeout=20) for _ in range(2)]
    wait_for(lambda: rpc.rpc_sync("worker1", waiting), 2, "calls that wait")
    try:
        rpc.rpc_sync("worker1", answered_later, arguments, timeout=20)
    except RuntimeError as error:
        text = str(error)
    else:
        text = "answered"
    assert rpc.rpc_sync("worker1", answer_now) == 2
    return text, [future.wait() for future in first]


def test_what_waits_for_its_answer_is_held():
    with Group(2, per_rank=[{}, {"max_inflight_bytes": 1 << 20}]) as members:
        text, answers = members[0].call(begin_two_and_a_third)
        assert "max_inflight_bytes (1048576)" in text
        assert answers == [True, True]
        members.shutdown()
