"""What a worker shows of itself: its log in Python's logging, what it waits for, its figures."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
import urllib.request
from pathlib import Path

import pytest
import torch
from gate import open_gate, wait_for_gate, wait_until_begun
from kept_log import keep_log, logged
from waiting import takes, wait_until
from workers import Group

import weft
from weft._observe import hangs
from weft._torch import current

ROOT = Path(__file__).resolve().parents[2]
STARTED = (
    f"weft {weft.__version__}, torch {torch.__version__}, key shared through the Store, "
    "encryption auto, shared memory on, Unix sockets on"
)

_calls: list[object] = []


def begin(to: str) -> None:
    import torch.distributed.rpc as rpc

    _calls.append(rpc.rpc_async(to, wait_for_gate, timeout=25))


def end() -> str:
    return _calls.pop().wait()


def fail():
    raise ValueError("on purpose")


def work() -> None:
    import torch
    import torch.distributed.rpc as rpc

    for _ in range(3):
        rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1))
    with pytest.raises(ValueError, match="on purpose"):
        rpc.rpc_sync("worker1", fail)
    assert rpc.remote("worker1", int, args=("5",)).to_here() == 5


def waits() -> list:
    """Without the messages that keep tables right, such as those of an RRef that was collected."""
    import weft

    found = [one for one in weft.who_waits() if one.what != "other"]
    return [(one.kind, one.what, one.whom, one.timeout) for one in found]


def figures():
    import weft

    return weft.metrics()


def text() -> str:
    import weft

    return weft.metrics_text()


def info() -> dict[str, str]:
    import weft

    return weft.debug_info()


def page() -> str:
    from weft._observe import exporter

    host, port = exporter.address()
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return answer.read().decode()


@pytest.fixture(scope="module")
def group():
    with Group(2, {"WEFT_METRICS": "127.0.0.1:0"}, rpc_timeout=30) as members:
        members[0].call(work)
        yield members
        members.shutdown()


def test_a_call_that_waits_is_shown_until_it_ends(group):
    assert group[0].call(waits) == []
    group[0].call(begin, "worker1")
    group[1].call(wait_until_begun)
    assert group[0].call(waits) == [("call", "python", "worker1", 25.0)]
    assert group[0].call(figures).oldest_call > 0
    group[1].call(open_gate)
    assert group[0].call(end) == "late"
    assert group[0].call(waits) == []


def test_metrics_count_calls_by_kind(group):
    found = group[0].call(figures)
    assert found.counters["calls_sent"] >= 6
    kinds = {kind: one.counts[-1] for kind, one in found.round_trips.items()}
    assert kinds["script"] == 3
    assert kinds["python"] >= 1
    assert (kinds["remote"], kinds["fetch"]) == (1, 1)
    for one in found.round_trips.values():
        assert one.counts == sorted(one.counts)
        assert len(one.counts) == len(found.bounds) + 1
    assert found.round_trips["script"].seconds > 0
    peer = found.peers["worker1"]
    assert peer.transport == "unix"
    assert peer.bytes_sent > 0
    assert peer.reconnects == 0
    assert group[1].call(figures).counters["calls_served"] >= 6


def test_debug_info_is_the_agents(group):
    found = group[0].call(info)
    assert int(found["agent.calls_sent"]) >= 6
    assert found["agent.peer.worker1.transport"] == "unix"


def test_the_text_is_prometheus_text(group):
    lines = group[0].call(text).splitlines()
    assert "# TYPE weft_calls_sent_total counter" in lines
    assert 'weft_round_trip_seconds_count{kind="script"} 3' in lines
    assert 'weft_round_trip_seconds_bucket{kind="script",le="+Inf"} 3' in lines
    assert 'weft_peer_reconnects_total{peer="worker1"} 0' in lines
    kinds = [line.split()[2:] for line in lines if line.startswith("# TYPE")]
    names = [name for name, _ in kinds]
    assert len(names) == len(set(names))
    # As Prometheus' own checker wants it.
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds)
    helped = [line.split(maxsplit=3)[2:] for line in lines if line.startswith("# HELP")]
    assert [name for name, text in helped if text] == names
    for line in lines:
        assert line.startswith("#") or float(line.rpartition(" ")[2]) >= 0


def test_refusals_are_counted_by_their_cause():
    with Group(2, per_rank=[{}, {"request_policy": "script"}]) as members:
        assert "refuses the request" in members[0].fails(begin_and_end, "worker1").message
        counters = members[1].call(figures).counters
        assert (counters["requests_refused"], counters["requests_refused_by_policy"]) == (1, 1)
        members.shutdown()


def begin_and_end(to: str) -> None:
    begin(to)
    end()


def listening_ports() -> list[int]:
    """Where this process takes TCP connections."""
    own = {os.path.realpath(one).rpartition("/")[2] for one in Path("/proc/self/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listens = "0A"
    return [
        int(row[1].partition(":")[2], 16)
        for row in rows
        if row[3] == listens and f"socket:[{row[9]}]" in own
    ]


def connect_to(port: int) -> None:
    """As somebody who does not know the protocol; until the other end hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 50)
        with contextlib.suppress(ConnectionError):
            while stranger.recv(4096):
                pass


def test_refused_connections_are_counted_by_their_cause():
    with Group(1, {"WEFT_SOCKET_IFNAME": "lo"}) as members:
        (port,) = members[0].call(listening_ports)
        connect_to(port)
        counters = members[0].call(figures).counters
        causes = {
            name: count
            for name, count in counters.items()
            if name.startswith("connections_refused_by_")
        }
        assert len(causes) == 10
        assert counters["connections_refused"] == sum(causes.values()) == 1
        assert causes["connections_refused_by_malformed"] == 1
        members.shutdown()


def test_the_text_is_served(group):
    assert "weft_calls_sent_total" in group[0].call(page)


def send_much() -> None:
    import torch
    import torch.distributed.rpc as rpc

    rpc.rpc_sync("worker1", torch.sum, args=(torch.ones(1 << 20),))


def text_with_a_process_group(rank: int, meeting: str) -> str:
    """Of a group whose rank 1 comes late."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("weft", init_method=f"{meeting}-group", rank=rank, world_size=2)
    if rank == 1:
        takes(0.3)  # what a straggler does
    dist.all_reduce(torch.ones(1))
    found = text()
    dist.destroy_process_group()
    return found


def test_what_the_grafana_board_shows_is_served(group):
    board = json.loads((ROOT / "examples/observe/grafana.json").read_text())
    asked = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
    names = set(re.findall(r"weft_\w+", " ".join(asked)))
    assert len(names) >= 20
    for rank, member in enumerate(group):
        member.start(text_with_a_process_group, rank, group.meeting)
    served, _ = (member.result() for member in group)
    missing = [one for one in names if not re.search(rf"^{one}(\{{.*\}})? ", served, re.MULTILINE)]
    assert missing == []


def join_with_logs(level: int | None) -> Group:
    """Two workers whose Python logging is set up before they join."""
    from workers import Workers, join

    workers = Workers(2)
    for worker in workers:
        worker.call(keep_log, level)
    for rank, worker in enumerate(workers):
        worker.start(join, rank, 2, workers.meeting, rpc_timeout=30)
    for worker in workers:
        worker.result()
    return workers


def test_log_lines_are_pythons_with_their_levels():
    with join_with_logs(logging.DEBUG) as workers:
        workers[0].call(work)
        wait_until(
            lambda: any("connected to" in one[2] for one in workers[0].call(logged)),
            "the line has come through the queue",
        )
        lines = workers[0].call(logged)
        assert {name for name, _, _ in lines} == {"weft"}
        said = [text for _, level, text in lines if level == "INFO"]
        assert f"worker 'worker0' (rank 0) of 2 has joined: {STARTED}" in said
        said = [text for _, level, text in lines if level == "DEBUG"]
        assert any("connected to worker 'worker1' (rank 1) over unix" in text for text in said)
        assert any("worker 'worker1' (rank 1) is in the group, at " in text for text in said)
        assert "connected to" not in workers[0].output()
        workers[0].call(send_much)
        arena = "large buffers from worker 'worker0' (rank 0) come through its shared memory"
        wait_until(
            lambda: ("weft", "DEBUG", arena) in workers[1].call(logged),
            lambda: f"the arena is told of in {workers[1].call(logged)}",
        )
        workers.all(leave)


def leave() -> None:
    import torch.distributed.rpc as rpc

    rpc.shutdown()


def test_pythons_level_rules_where_the_variable_is_unset():
    with join_with_logs(None) as workers:
        workers[0].call(work)
        assert [one for one in workers[0].call(logged) if one[1] in ("DEBUG", "INFO")] == []
        workers.all(leave)


def test_the_line_of_the_metrics_is_an_address_for_ipv6_too():
    told = {"WEFT_LOG_LEVEL": "info", "WEFT_METRICS": "[::1]:0"}
    with Group(1, told, rpc_timeout=30) as members:
        members[0].wait_for_output("metrics are served at http://[::1]:")
        members.shutdown()


def test_without_a_handler_the_lines_go_to_standard_error():
    with Group(2, {"WEFT_LOG_LEVEL": "info"}, rpc_timeout=30) as members:
        members[0].wait_for_output("weft (info): worker 'worker0' (rank 0) of 2 has joined")
        assert "weft-log" not in members[0].call(threads)
        members.shutdown()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_a_call_that_hangs_is_reported_once():
    with Group(2, {"WEFT_HANG_REPORT": "0.4"}, rpc_timeout=30) as members:
        members[0].call(begin, "worker1")
        said = members[0].wait_for_output("a python call waits for worker 'worker1' for")
        assert "its timeout is 25 s" in said
        # The next line of another call comes later than a second one of this would.
        members[1].call(begin, "worker0")
        members[1].wait_for_output("a python call waits for worker 'worker0' for")
        assert members[0].output().count("a python call waits") == 1
        # What the other worker says that it does, in the same line.
        assert re.search(r"worker 'worker1' for .*; worker1: its main thread is at ", said)
        members[1].call(wait_until_begun)
        assert "it serves wait_for_gate" in members[0].call(what_it_does, "worker1")
        for member in members:
            member.call(open_gate)
        for member in members:
            assert member.call(end) == "late"
        members.shutdown()


def test_an_error_does_not_end_the_reports(monkeypatch):
    watcher = hangs._Watcher(limit=0.001)
    said = []

    def who_waits():
        if said:
            watcher._ended.set()
            return []
        raise KeyError("a group that has just ended")

    monkeypatch.setattr(hangs, "who_waits", who_waits)
    monkeypatch.setattr(hangs, "warn", said.append)
    watcher.run()
    assert said == ["what hangs was not looked for: 'a group that has just ended'"]


def test_an_agent_that_ends_meanwhile_is_none(monkeypatch):
    monkeypatch.setattr(current.api, "_is_current_rpc_agent_set", lambda: True)
    assert current.agent() is None


def what_it_does(worker: str) -> str:
    import torch.distributed.rpc as rpc

    from weft._observe.doing import doing

    return rpc.rpc_sync(worker, doing)


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("WEFT_HANG_REPORT", "soon", "WEFT_HANG_REPORT must be a number of seconds, got 'soon'"),
        ("WEFT_HANG_REPORT", "inf", "WEFT_HANG_REPORT must be a number of seconds, got 'inf'"),
        ("WEFT_HANG_REPORT", "nan", "WEFT_HANG_REPORT must be a number of seconds, got 'nan'"),
        ("TORCH_FR_BUFFER_SIZE", "x", "TORCH_FR_BUFFER_SIZE must be a whole number, got 'x'"),
        ("WEFT_METRICS", "9090", "WEFT_METRICS must be host:port, got '9090'"),
    ],
)
def test_a_wrong_variable_is_refused(variable, value, says):
    from workers import Workers, join

    with Workers(1, {variable: value}) as workers:
        for _ in range(2):
            error = workers[0].fails(join, 0, 1, workers.meeting)
            assert says in str(error)
