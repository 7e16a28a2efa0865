"""RPC calls in the flight record: at both ends, in flight, failed; and what has it written."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from gate import open_gate, wait_for_gate, wait_until_begun
from waiting import wait_until
from workers import Group

from weft._observe import flight

_calls: list[object] = []


def double(value):
    return 2 * value


def work() -> None:
    import torch
    import torch.distributed.rpc as rpc

    rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1000), 1))
    rpc.rpc_async("worker1", double, args=(21,)).wait()
    assert rpc.remote("worker1", double, args=(4,)).to_here() == 8
    _calls.append(rpc.rpc_async("worker1", wait_for_gate))


def time_out() -> None:
    import torch.distributed.rpc as rpc

    with pytest.raises(RuntimeError, match="timeout"):
        rpc.rpc_sync("worker1", wait_for_gate, timeout=0.2)


def calls() -> tuple[list[dict], list[dict]]:
    """Those that were made, and those that were served."""
    record = flight.record()
    return record["rpc_calls"], record["rpc_requests"]


def recorded(folder: Path, rank: int) -> dict:
    return pickle.loads((folder / f"rank_{rank}").read_bytes())


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "flight"
    place.mkdir()
    return place


@pytest.fixture
def group(folder):
    said = {"TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_", "TORCH_INCLUDE_STACK_TRACE": "1"}
    with Group(2, said, rpc_timeout=30) as members:
        yield members


def test_calls_are_recorded_at_both_ends(group):
    group[0].call(work)
    group[1].call(wait_until_begun)
    made, _ = group[0].call(calls)
    assert [(one["kind"], one["function"]) for one in made] == [
        ("script", "add"),
        ("python", "double"),
        ("remote", "double"),
        ("fetch", "to_here"),
        ("python", "wait_for_gate"),
    ]
    assert not any(one["failed"] for one in made)
    assert made[0]["request_bytes"] > 4000
    assert made[0]["answer_bytes"] > 4000
    assert {one["peer"] for one in made} == {1}
    assert all(one["time_created_ns"] < one["time_ended_ns"] for one in made[:-1])
    assert made[-1]["time_ended_ns"] == 0
    # The stack of what Weft starts from Python; torch itself makes the creation of an RRef.
    for one in (made[0], made[1], made[-1]):
        assert ("work", __file__) in [(frame["name"], frame["filename"]) for frame in one["frames"]]
    _, served = group[1].call(calls)
    assert [(one["call"], one["function"]) for one in served] == [
        (one["call"], one["function"]) for one in made
    ]
    for one in served[:-1]:
        assert one["time_created_ns"] <= one["time_started_ns"] <= one["time_ended_ns"]
    assert served[-1]["time_ended_ns"] == 0
    group[1].call(open_gate)
    group.shutdown()


def test_a_timeout_writes_the_records_of_all(group, folder):
    group[0].call(time_out)
    wait_until(
        lambda: {"rank_0", "rank_1"} <= set(os.listdir(folder)),
        lambda: f"both are written, and there is {os.listdir(folder)}",
    )
    (call,) = recorded(folder, 0)["rpc_calls"]
    assert (call["function"], call["failed"]) == ("wait_for_gate", True)
    group[1].call(open_gate)
    group.shutdown()


def test_a_lost_worker_writes_the_record(group, folder):
    group[0].call(call_double)
    group[1].kill()
    wait_until(lambda: (folder / "rank_0").exists(), "the record is written")
    assert recorded(folder, 0)["rpc_calls"][0]["function"] == "double"


def test_a_failure_counts_where_there_were_more_before(monkeypatch):
    """Of another group, or of a worker that has come back."""
    dumper, dumped, found = flight._Dumper(), [], [1, 0, 1]

    def failures(*_: int) -> int:
        if len(found) == 1:
            dumper._ended.set()
            return found[0]
        return found.pop(0)

    monkeypatch.setattr(flight, "_SLICE", 0)
    monkeypatch.setattr(flight, "_failures", failures)
    monkeypatch.setattr(dumper, "_dump", dumped.append)
    dumper.run()
    assert dumped == ["an operation has failed"] * 2


def test_failures_are_as_before_while_the_group_ends(monkeypatch):
    def ends():
        raise KeyError("a worker that has left")

    monkeypatch.setattr(flight.current, "agent", ends)
    assert flight._failures(3) == 3


def call_double() -> None:
    import torch.distributed.rpc as rpc

    assert rpc.rpc_sync("worker1", double, args=(2,)) == 4


@pytest.mark.parametrize("asked", [{"TORCH_FR_BUFFER_SIZE": "0"}, {}], ids=["none", "nothing"])
def test_off_means_nothing_is_kept(asked):
    with Group(2, asked, rpc_timeout=30) as members:
        members[0].call(call_double)
        assert members[0].call(calls) == ([], [])
        members.shutdown()


def test_the_oldest_give_way():
    with Group(2, {"TORCH_FR_BUFFER_SIZE": "3"}, rpc_timeout=30) as members:
        for _ in range(5):
            members[0].call(call_double)
        made, _ = members[0].call(calls)
        _, served = members[1].call(calls)
        assert len(made) <= 3
        assert len(served) == 3
        assert [one["call"] for one in made] == [one["call"] for one in served][-len(made) :]
        members.shutdown()
