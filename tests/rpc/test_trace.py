"""``weft.trace``: one trace of all workers, with the calls between them."""

from __future__ import annotations

import json
import threading

import pytest
import trace_format
from workers import Group, Workers

_gate = threading.Event()


def double(value):
    return 2 * value


def work() -> None:
    import torch
    import torch.distributed.rpc as rpc

    assert rpc.rpc_sync("worker1", double, args=(21,)) == 42
    futures = [rpc.rpc_async("worker2", torch.add, args=(torch.ones(1000), 1)) for _ in range(3)]
    for future in futures:
        future.wait()


def traced(path: str) -> None:
    import weft

    with weft.trace(path):
        work()


def traced_alone(path: str) -> None:
    import torch

    import weft

    with weft.trace(path):
        torch.ones(3).sum()


def traced_twice(path: str) -> None:
    import weft

    with weft.trace(path), weft.trace(path):
        pass


def read(path) -> list[dict]:
    events = json.loads(path.read_text())["traceEvents"]
    trace_format.check(events)
    return events


def within(event: dict, mark: dict) -> bool:
    same = (event["pid"], event["tid"]) == (mark["pid"], mark["tid"])
    return same and event["ts"] <= mark["ts"] <= event["ts"] + event["dur"]


@pytest.fixture
def group():
    with Group(3, rpc_timeout=60) as members:
        yield members
        members.shutdown()


def test_calls_are_ranges_at_both_ends_with_an_arrow_between_them(group, tmp_path):
    path = tmp_path / "trace.json"
    group[0].call(traced, str(path))
    events = read(path)
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    pids = {}
    for rank in range(3):
        (pid,) = [
            one for one, name in names.items() if name.startswith(f"worker{rank} (rank {rank}")
        ]
        pids[rank] = pid
    for rank, function, count in ((1, "double", 1), (2, "add", 3)):
        ranges = [one for one in events if one["name"] == f"weft::rpc worker{rank}.{function}"]
        callers = [one for one in ranges if one["pid"] == pids[0]]
        callees = [one for one in ranges if one["pid"] == pids[rank]]
        assert (len(callers), len(callees)) == (count, count)
        arrows = {}
        for one in events:
            if one.get("cat") == "weft::rpc" and one["ph"] in "sf":
                arrows.setdefault(one["id"], {})[one["ph"]] = one
        for caller in callers:
            (arrow,) = [one for one in arrows.values() if within(caller, one["s"])]
            (callee,) = [one for one in callees if within(one, arrow["f"])]
            assert callee["args"]["call"] == caller["args"]["call"]
            assert callee["args"]["queue_us"] >= 0
            # One clock: the callee begins after the caller, and a blocking call encloses it.
            assert caller["ts"] <= callee["ts"] + 500
            if function == "double":
                assert callee["ts"] + callee["dur"] <= caller["ts"] + caller["dur"] + 500
            else:
                assert caller["args"]["request_bytes"] > 4000
    # torch's own events of the callee are there, too.
    assert any(one["name"] == "aten::add" and one["pid"] == pids[2] for one in events)


def test_it_can_be_recorded_again(group, tmp_path):
    for number in range(2):
        path = tmp_path / f"{number}.json"
        group[number].call(traced, str(path))
        assert any(one["name"].startswith("weft::rpc worker") for one in read(path))


def test_a_folder_gets_a_profile_of_each_worker(group, tmp_path):
    group[0].call(traced, str(tmp_path))
    names = sorted(one.name.partition(".")[0] for one in tmp_path.glob("*.pt.trace.json"))
    assert names == ["worker0", "worker1", "worker2"]


def test_tensorboards_profiler_plugin_reads_the_folder(group, tmp_path):
    """As the plugin does when it is shown one of the profiles."""
    from torch_tb_profiler.profiler.data import RunProfileData
    from torch_tb_profiler.profiler.run_generator import RunGenerator

    group[0].call(traced, str(tmp_path))
    (path,) = tmp_path.glob("worker2.*.pt.trace.json")
    profile = RunProfileData.parse("worker2", "1", str(path), str(tmp_path))
    shown = RunGenerator("worker2", "1", profile).generate_run_profile()
    assert {"Overview", "Operator", "Trace"} <= {view.display_name for view in shown.views}
    calls = {one["name"]: one["calls"] for one in shown.operation_table_by_name["data"]}
    assert calls["aten::add"] == 3


def test_one_at_a_time(group, tmp_path):
    error = group[0].fails(traced_twice, str(tmp_path / "trace.json"))
    assert "is being traced already" in error.message
    group[0].call(traced, str(tmp_path / "trace.json"))


def test_outside_of_a_group_it_is_this_process(tmp_path):
    with Workers(1) as workers:
        workers[0].call(traced_alone, str(tmp_path / "trace.json"))
    assert any(one["name"] == "aten::sum" for one in read(tmp_path / "trace.json"))


def profiled() -> list[str]:
    """What torch.profiler alone shows at the caller."""
    from torch.profiler import profile

    with profile() as found:
        work()
    return [one.name for one in found.events()]


def test_torchs_profiler_shows_calls(group):
    names = group[0].call(profiled)
    assert "weft::rpc worker1.double" in names
    assert names.count("weft::rpc worker2.add") == 3
