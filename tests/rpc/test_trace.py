"""``weft.trace``: one trace of all workers, with the calls between them."""

from __future__ import annotations

import json
import subprocess
import sys

import perfetto_engine
import pytest
import trace_format
from rejoining import Static
from waiting import wait_until
from workers import Group, WorkerError, Workers, leave

from weft._observe import flight, trace


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


def passed_on_to_the_last_worker_and_back_again_for_a_very_long_name(value):
    import torch
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync("worker2", torch.add, args=(value, 1))


def end():
    """The name of a function of Weft's that ends the trace."""


def all_reduce() -> None:
    import torch
    import torch.distributed as dist

    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(5)]
    for one in works:
        one.wait()


def join_process_group(rank: int, meeting: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("weft", init_method=f"{meeting}-group", rank=rank, world_size=3)
    all_reduce()


def traced_much(path: str) -> None:
    """Calls within calls, RRefs, a function named as one of Weft's, and asynchronous collectives."""
    import torch
    import torch.distributed.rpc as rpc

    import weft

    with weft.trace(path):
        futures = [rpc.rpc_async(f"worker{rank}", all_reduce) for rank in (1, 2)]
        all_reduce()
        for future in futures:
            future.wait()
        work()
        passed_on = passed_on_to_the_last_worker_and_back_again_for_a_very_long_name
        rpc.rpc_sync("worker1", passed_on, args=(torch.ones(9),))
        rpc.remote("worker1", double, args=(1,)).to_here()
        rpc.rpc_sync("worker2", end)


# The ranges of calls at both ends of each arrow, by the process and the name.
_ARROWS = """
    select caller_process.name, callee_process.name, caller.name, callee.name,
        callee.ts - caller.ts, extract_arg(caller.arg_set_id, 'args.answer_bytes'),
        extract_arg(callee.arg_set_id, 'args.request_bytes'),
        extract_arg(callee.arg_set_id, 'args.queue_us')
    from flow
    join slice caller on caller.id = flow.slice_out
    join slice callee on callee.id = flow.slice_in
    join thread_track caller_track on caller_track.id = caller.track_id
    join thread_track callee_track on callee_track.id = callee.track_id
    join thread caller_thread on caller_thread.utid = caller_track.utid
    join thread callee_thread on callee_thread.utid = callee_track.utid
    join process caller_process on caller_process.upid = caller_thread.upid
    join process callee_process on callee_process.upid = callee_thread.upid
    where caller.name like 'weft::rpc %'
"""
_THREADS = """
    select distinct thread.name from slice
    join thread_track on thread_track.id = slice.track_id join thread using (utid)
"""


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


def test_perfetto_understands_all_of_it(group, tmp_path):
    for rank, member in enumerate(group):
        member.start(join_process_group, rank, group.meeting)
    for member in group:
        member.result()
    path = tmp_path / "trace.json"
    group[0].call(traced_much, str(path))
    ranges = sum(one["ph"] in "Xb" for one in read(path))
    arrows, threads, ((count, shortest),), ends, ((collectives,),), ((unnamed,),) = (
        perfetto_engine.ask(
            path,
            _ARROWS,
            _THREADS,
            "select count(*), min(dur) from slice",
            "select name from slice where name glob 'weft::rpc *.end'",
            "select count(*) from slice where name = 'weft:all_reduce'",
            "select count(*) from slice where name is null or name = ''",
        )
    )
    assert count == ranges and shortest >= 0 and unnamed == 0
    assert collectives == 15
    assert all(name.startswith("thread ") for (name,) in threads)
    # The user's function of that name at both ends, and not what Weft itself asks.
    assert ends == [("weft::rpc worker2.end",)] * 2
    found = {}
    for caller, callee, called, ran, later, answered, asked, queued in arrows:
        assert called == ran and later >= 0 and answered > 0 and asked > 0 and queued >= 0
        name = called.removeprefix("weft::rpc ")
        assert callee.startswith(f"{name.partition('.')[0]} (rank ")
        key = (caller.partition(" ")[0], name)
        found[key] = found.get(key, 0) + 1
    passed_on = passed_on_to_the_last_worker_and_back_again_for_a_very_long_name.__name__
    wanted = {
        ("worker0", "worker1.double"): 2,
        ("worker0", "worker1.to_here"): 1,
        ("worker0", "worker2.add"): 3,
        ("worker0", f"worker1.{passed_on}"): 1,
        ("worker1", "worker2.add"): 1,
        ("worker0", "worker1.all_reduce"): 1,
        ("worker0", "worker2.all_reduce"): 1,
        ("worker0", "worker2.end"): 1,
    }
    assert {key: found.get(key) for key in wanted} == wanted


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


_kept: list = []  # a worker's traces that have not ended


def traced_until_killed(path: str) -> None:
    import weft

    _kept.append(weft.trace(path))
    _kept[0].__enter__()


def is_traced() -> bool:
    return trace._tracing is not None


def no_longer_traced() -> None:
    wait_until(lambda: not is_traced(), "the trace has ended", 60)


def test_the_trace_of_a_tracer_that_dies_ends(tmp_path):
    with Static(3, peer_timeout=60) as members:
        members[0].call(traced_until_killed, str(tmp_path / "trace.json"))
        assert members[1].call(is_traced) and members[2].call(is_traced)
        members[0].kill()
        members[1].call(no_longer_traced)
        members[2].call(no_longer_traced)
        members.again(0)
        wait_until(lambda: can_trace(members[1], str(tmp_path / "trace.json")), "all are back", 60)
    read(tmp_path / "trace.json")


def can_trace(member, path: str) -> bool:
    """All have heard that the killed one is back."""
    try:
        member.call(traced, path)
    except WorkerError as error:
        if "is lost" in error.message:
            return False
        raise
    return True


def traced_until_the_group_has_ended(path: str) -> None:
    import torch.distributed.rpc as rpc

    import weft

    with pytest.raises(RuntimeError), weft.trace(path):
        rpc.shutdown()
    assert not is_traced()


def ends_with_the_group() -> None:
    leave()
    no_longer_traced()


def test_a_trace_ends_with_the_group(tmp_path):
    with Group(2) as members:
        members[1].start(ends_with_the_group)
        members[0].call(traced_until_the_group_has_ended, str(tmp_path / "trace.json"))
        members[1].result()


def test_the_end_of_a_trace_is_one_with_the_end_of_its_recording(monkeypatch):
    """Another trace that began in between would record nothing."""
    locked = []
    monkeypatch.setattr(flight, "keep_as_asked", lambda: locked.append(trace._mutex.locked()))
    trace.begin("", trace._process(), 0)
    trace.end("", trace._process(), 0)
    assert locked == [True]


_LEFT_OPEN = """
import threading, torch, weft
from weft._observe import trace
asked = threading.Thread(target=trace.begin, args=("another worker", "its process", 0))
asked.start()
asked.join()
torch.ones(2) + 1
"""


def test_a_program_may_end_while_it_is_traced():
    command = [sys.executable, "-c", _LEFT_OPEN]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
