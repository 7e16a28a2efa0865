"""Clocks of several workers in one trace: how far apart they are, and that events are moved so far."""

from __future__ import annotations

import dataclasses

import pytest
from workers import Group

from weft._observe.merged_trace import Recorded, merged

AHEAD = 5_000_000_000  # nanoseconds


def skewed() -> int:
    """A clock that is ahead."""
    import time

    return time.monotonic_ns() + AHEAD


def offsets(worker: str) -> tuple[int, int]:
    """Of a worker's clock that is ahead, and of one that is the same."""
    import torch.distributed.rpc as rpc

    from weft._observe.clocks import clock_offset

    ahead = clock_offset(worker, there=lambda: rpc.rpc_sync(worker, skewed))
    return ahead, clock_offset(worker)


def test_the_offset_of_a_clock_is_found():
    with Group(2, rpc_timeout=30) as group:
        ahead, same = group[0].call(offsets, "worker1")
        assert abs(ahead - AHEAD) < 1e9
        assert same == 0
        group.shutdown()


def profile(begin: float, process: int) -> dict:
    """One event that begins so many microseconds after the profile's base."""
    event = {"ph": "X", "name": "step", "pid": process, "tid": 1, "ts": begin, "dur": 10.0}
    return {"baseTimeNanoseconds": 1_000_000, "traceEvents": [event]}


def part(rank: int, begin: float, offset: int) -> Recorded:
    return Recorded(
        name=f"worker{rank}",
        rank=rank,
        host="here",
        pid=100 + rank,
        profile=profile(begin, 100 + rank),
        made=[],
        served=[],
        tasks=[],
        offset=offset,
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_events_are_on_one_clock(sign):
    """Worker 1's event comes 7 us after worker 0's; its clock says something else."""
    parts = [part(0, 50.0, 0), part(1, 57.0 + sign * 30.0, sign * 30_000)]
    events = [one for one in merged(parts)["traceEvents"] if one["name"] == "step"]
    assert [one["ts"] for one in events] == [0.0, 7.0]
    apart = [dataclasses.replace(one, offset=0) for one in parts]
    events = [one for one in merged(apart)["traceEvents"] if one["name"] == "step"]
    assert [one["ts"] for one in events] != [0.0, 7.0]
