"""Weft's operations are in the dumps of torch's flight recorder, under the names that its tools know."""

from __future__ import annotations

import json

import pytest
from ranks import Ranks

from weft._torch.patches.flight_recorder import torch_records

pytestmark = pytest.mark.skipif(
    torch_records(), reason="this torch records groups of any backend itself"
)


def operate() -> None:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(2, 3)
    dist.all_reduce(tensor)
    dist.barrier()
    dist.all_reduce(tensor.long(), async_op=True).wait()
    if dist.get_rank() == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)


def dumped(**options):
    import torch

    return json.loads(torch._C._distributed_c10d._dump_fr_trace_json(**options))


def dumped_with_stacks():
    import pickle

    import torch

    return pickle.loads(torch._C._distributed_c10d._dump_fr_trace())


def fails_alone() -> str:
    import torch
    import torch.distributed as dist

    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(2), async_op=True).wait()
    return dumped()["entries"][-1]


def active_while_one_waits() -> list[dict]:
    """What rank 0 has under way before rank 1 calls the operation."""
    import torch
    import torch.distributed as dist

    group = dist.new_group([0, 1], group_desc="pair")
    found = []
    if dist.get_rank() == 0:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        found = dumped(onlyActive=True)["entries"]
        dist.barrier()
    else:
        dist.barrier()
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    work.wait()
    return found


def test_every_operation_is_an_entry():
    with Ranks(2) as ranks:
        ranks.all(operate)
        for rank, trace in enumerate(ranks.all(dumped)):
            entries = trace["entries"]
            message = "nccl:send 0->1" if rank == 0 else "nccl:recv 1<-0"
            names = ["nccl:all_reduce", "nccl:all_reduce_barrier", "nccl:all_reduce", message]
            assert [one["profiling_name"] for one in entries] == names
            assert [one["collective_seq_id"] for one in entries] == [1, 2, 3, 3]
            assert [one["is_p2p"] for one in entries] == [False, False, False, True]
            assert {one["state"] for one in entries} == {"completed"}
            assert entries[0]["input_sizes"] == [[2, 3]]
            assert [entries[at]["input_dtypes"] for at in (0, 2)] == [["Float"], ["Long"]]
            assert entries[3]["input_sizes" if rank == 0 else "output_sizes"] == [[2, 3]]
            assert entries[0]["process_group"] == ["0", "default_pg"]
            assert entries[0]["timeout_ms"] == 30_000
            assert all(one["duration_ms"] >= 0 for one in entries)
            assert trace["pg_config"]["0"] == {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
            (status,) = trace["pg_status"].values()
            assert status["last_completed_collective"] == "3"


def test_stacks_say_who_called():
    with Ranks(2) as ranks:
        ranks.all(operate)
        for trace in ranks.all(dumped_with_stacks):
            names = [frame["name"] for frame in trace["entries"][0]["frames"]]
            assert "operate" in names


def test_the_oldest_entries_give_way():
    with Ranks(2, {"TORCH_FR_BUFFER_SIZE": "3"}) as ranks:
        ranks.all(operate)
        assert [one["record_id"] for one in ranks[0].call(dumped)["entries"]] == [1, 2, 3]


def test_off_means_nothing_is_kept():
    with Ranks(2, {"TORCH_FR_BUFFER_SIZE": "0"}) as ranks:
        ranks.all(operate)
        assert "entries" not in ranks[0].call(dumped)


def test_what_failed_is_not_completed():
    with Ranks(2, timeout=1.0) as ranks:
        entry = ranks[0].call(fails_alone)
        assert (entry["state"], entry["retired"]) == ("started", True)


def test_what_still_runs_is_active():
    with Ranks(2) as ranks:
        (entry,) = ranks.all(active_while_one_waits)[0]
        assert entry["process_group"][1] == "pair"
        assert entry["profiling_name"] == "nccl:all_reduce"
        assert not entry["retired"]
        assert ranks[0].call(dumped, onlyActive=True)["entries"] == []
