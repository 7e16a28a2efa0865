"""Weft's own Python surface: options, init_rpc by keyword, wait_all_workers, what debug info tells."""

from __future__ import annotations

import inspect
import time

import pytest
from waiting import takes
from workers import Group, Workers, join

# Options.


def options_error(**options) -> tuple[str, str]:
    import weft

    try:
        weft.RpcBackendOptions(**options)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@pytest.fixture(scope="module")
def alone():
    with Workers(1) as workers:
        yield workers[0]


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"num_worker_thread": 3}, "TypeError", "num_worker_thread"),
        ({"num_send_recv_threads": 3}, "TypeError", "num_send_recv_threads"),
        ({"num_worker_threads": 0}, "ValueError", "num_worker_threads must be positive, got 0"),
        ({"num_worker_threads": 2.5}, "TypeError", "num_worker_threads must be an int"),
        ({"num_worker_threads": 2**31}, "ValueError", "num_worker_threads must be at most"),
        ({"max_message_bytes": 2**63}, "ValueError", "max_message_bytes must be at most"),
        ({"num_worker_threads": True}, "TypeError", "num_worker_threads must be an int"),
        ({"rpc_timeout": -1}, "ValueError", "rpc_timeout must not be negative"),
        ({"rpc_timeout": "60"}, "TypeError", "rpc_timeout must be a number of seconds"),
        ({"rpc_timeout": None}, "TypeError", "rpc_timeout must be a number of seconds"),
        ({"heartbeat_interval": 0}, "ValueError", "heartbeat_interval must be positive"),
        ({"heartbeat_interval": float("nan")}, "ValueError", "heartbeat_interval"),
        ({"rpc_timeout": float("inf")}, "ValueError", "rpc_timeout"),
        ({"peer_timeout": 0.5}, "ValueError", "must be at least twice heartbeat_interval"),
        ({"heartbeat_interval": 3, "peer_timeout": 3}, "ValueError", "at least twice"),
        ({"reconnect_timeout": -1}, "ValueError", "reconnect_timeout must not be negative"),
        ({"reconnect_timeout": 6}, "ValueError", "must be at most peer_timeout"),
        ({"reconnect_timeout": "5"}, "TypeError", "reconnect_timeout must be a number of seconds"),
        ({"max_message_bytes": 0}, "ValueError", "max_message_bytes must be positive"),
        ({"max_message_bytes": 1.5}, "TypeError", "max_message_bytes must be an int"),
        ({"max_inflight_bytes": -4}, "ValueError", "max_inflight_bytes must be positive"),
        ({"max_calls_in_flight": -1}, "ValueError", "max_calls_in_flight must not be negative"),
        ({"max_calls_in_flight": 1.5}, "TypeError", "max_calls_in_flight must be an int"),
        ({"request_policy": "all"}, "ValueError", "request_policy must be one of"),
        ({"devices": ["cpu"]}, "ValueError", "accelerators"),
        ({"device_maps": {"w": {0: 1, 2: 1}}}, "ValueError", "1-to-1"),
    ],
    ids=lambda value: next(iter(value), None) if isinstance(value, dict) else None,
)
def test_bad_options_raise(alone, options, kind, says):
    got, text = alone.call(options_error, **options)
    assert got == kind, text
    assert says in text


def option_values() -> dict:
    import weft

    made = weft.RpcBackendOptions(
        num_worker_threads=3,
        rpc_timeout=7,
        init_method="tcp://h:1",
        heartbeat_interval=2,
        peer_timeout=9.5,
        reconnect_timeout=0,
        max_message_bytes=1 << 40,
        auth_key_file="/some/file",
        interface="lo",
        request_policy="script",
        device_maps={"w": {"cpu": "cpu"}},
    )
    made.set_device_map("w", {"cuda:0": "cuda:1"})
    names = [
        "num_worker_threads",
        "rpc_timeout",
        "init_method",
        "heartbeat_interval",
        "peer_timeout",
        "reconnect_timeout",
        "max_message_bytes",
        "auth_key_file",
        "interface",
        "request_policy",
    ]
    values = {name: getattr(made, name) for name in names}
    values["map"] = sorted(f"{a}>{b}" for a, b in made.device_maps["w"].items())
    defaults = weft.RpcBackendOptions()
    values["defaults"] = [getattr(defaults, name) for name in names]
    try:
        made.set_device_map("w", {"cuda:0": "cuda:2"})
    except ValueError as error:
        values["twice"] = str(error)
    return values


def test_options_keep_what_they_were_given(alone):
    values = alone.call(option_values)
    assert values["num_worker_threads"] == 3
    assert values["rpc_timeout"] == 7
    assert values["init_method"] == "tcp://h:1"
    assert (values["heartbeat_interval"], values["peer_timeout"]) == (2, 9.5)
    assert values["reconnect_timeout"] == 0
    assert values["max_message_bytes"] == 1 << 40
    assert (values["auth_key_file"], values["interface"]) == ("/some/file", "lo")
    assert values["request_policy"] == "script"
    assert values["map"] == ["cpu>cpu", "cuda:0>cuda:1"]
    assert "1-to-1" in values["twice"]
    largest = values["defaults"].pop(6)
    assert 0 < largest <= 64 << 30  # half of what memory there is
    assert values["defaults"] == [16, 60, "env://", 1, 5, 5, "", "", "any"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("WEFT_PEER_TIMEOUT", "soon", "WEFT_PEER_TIMEOUT must be a number of seconds, got 'soon'"),
        ("WEFT_RECONNECT_TIMEOUT", "-1", "WEFT_RECONNECT_TIMEOUT must not be negative"),
        ("WEFT_HEARTBEAT_INTERVAL", "9", "must be at least twice heartbeat_interval"),
    ],
)
def test_bad_variables_raise(name, text, says):
    with Workers(1, {name: text}) as workers:
        kind, message = workers[0].call(options_error)
        assert kind == "ValueError"
        assert says in message


# init_rpc by keyword, wait_all_workers.


def init_by_keyword(rank: int, meeting: str, **options) -> None:
    import weft

    weft.init_rpc(f"worker{rank}", rank=rank, world_size=2, init_method=meeting, **options)


def init_both_ways(meeting: str) -> None:
    import weft

    given = weft.RpcBackendOptions(init_method=meeting)
    weft.init_rpc("a", 0, 1, rpc_backend_options=given, num_worker_threads=2)


def backend_options() -> tuple:
    import torch.distributed.rpc as rpc

    options = rpc.api._get_current_rpc_agent()._get_backend_options()
    return options.num_worker_threads, options.rpc_timeout, options.request_policy


def test_init_rpc_by_keyword():
    with Workers(2) as workers:
        for rank in range(2):
            workers[rank].start(
                init_by_keyword,
                rank,
                workers.meeting,
                num_worker_threads=5,
                rpc_timeout=9,
                request_policy="registered",
            )
        for worker in workers:
            worker.result()
        assert workers[0].call(backend_options) == (5, 9, "registered")


def test_init_rpc_takes_options_one_way_or_the_other():
    with Workers(1) as workers:
        error = workers[0].fails(init_both_ways, workers.meeting)
        assert error.kind == "TypeError" and "num_worker_threads" in error.message
        error = workers[0].fails(init_by_keyword, 0, workers.meeting, nonsense=1)
        assert error.kind == "TypeError" and "nonsense" in error.message


def wait_for_all(*timeout: float) -> float:
    import weft

    weft.wait_all_workers(*timeout)
    return time.monotonic()


def busy_then_wait(seconds: float) -> float:
    """Comes later than the others: while it has a call in flight that takes so long."""
    import torch.distributed.rpc as rpc

    import weft

    rpc.rpc_async("worker0", nap, args=(seconds,))
    weft.wait_all_workers()
    return time.monotonic()


def nap(seconds: float) -> None:
    takes(seconds)


def call(to: str) -> str:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync(to, name_here)


def name_here() -> str:
    import torch.distributed.rpc as rpc

    return rpc.get_worker_info().name


@pytest.mark.parametrize("timeout", [(), (30.0,)])
def test_wait_all_workers(timeout):
    with Group(3) as group:
        for _ in range(2):
            began = time.monotonic()
            group[0].start(wait_for_all, *timeout)
            group[1].start(wait_for_all, *timeout)
            group[2].start(busy_then_wait, 0.5)
            ends = [worker.result() for worker in group]
            assert min(ends) - began >= 0.5
            # It ends nothing.
            assert group[2].call(call, "worker1") == "worker1"
        group.shutdown()


def test_wait_all_workers_names_who_does_not_come():
    with Group(3) as group:
        group[0].start(wait_for_all, 1.0)
        group[1].start(wait_for_all, 1.0)
        for rank in (0, 1):
            message = group[rank].failure(15).message
            assert "worker 'worker2' (rank 2)" in message
            assert "worker 'worker1'" not in message or rank == 0
        assert group[0].call(call, "worker2") == "worker2"


# What one can see of an agent.


def debug_info() -> dict[str, str]:
    import torch.distributed.rpc as rpc

    return rpc.api._get_current_rpc_agent().get_debug_info()


def torch_debug_info() -> dict[str, str]:
    import torch.distributed.rpc as rpc

    return rpc._get_debug_info()


def worker_infos() -> list:
    import torch.distributed.rpc as rpc

    agent = rpc.api._get_current_rpc_agent()
    by_name = rpc.get_worker_info("worker1")
    by_rank = agent.get_worker_info(1)
    return [
        [(info.id, info.name) for info in agent.get_worker_infos()],
        (by_name.id, by_name.name) == (by_rank.id, by_rank.name),
        rpc.get_worker_info().name,
    ]


def send_bytes(to: str, numel: int) -> None:
    import torch
    import torch.distributed.rpc as rpc

    rpc.rpc_sync(to, torch.add, args=(torch.zeros(numel), 1))


def test_debug_info():
    with Group(2) as group:
        assert group[0].call(worker_infos) == [[(0, "worker0"), (1, "worker1")], True, "worker0"]
        group[0].call(send_bytes, "worker1", 250_000)
        info = group[0].call(debug_info)
        # TensorPipe's keys; agent.gil_average_wait_time_us comes with GIL profiling.
        for key in (
            "agent.thread_pool_size",
            "agent.num_idle_threads",
            "agent.client_active_calls",
            "agent.server_active_calls",
            "agent.server_active_async_calls",
        ):
            assert int(info[key]) >= 0
        assert int(info["agent.thread_pool_size"]) == 16
        assert int(info["agent.peer.worker1.bytes_sent"]) > 1_000_000
        assert int(info["agent.peer.worker1.bytes_received"]) > 1_000_000
        assert int(info["agent.peer.worker1.messages_sent"]) >= 1
        assert info["agent.peer.worker1.transport"] in ("unix", "tcp")
        assert int(info["agent.calls_sent"]) >= 1
        quantiles = [float(info[f"agent.round_trip_us_p{q}"]) for q in (50, 90, 99)]
        assert 0 < quantiles[0] <= quantiles[1] <= quantiles[2] < 60e6
        there = group[1].call(debug_info)
        assert int(there["agent.calls_served"]) >= 1
        assert int(there["agent.peer.worker0.bytes_received"]) > 1_000_000
        merged = group[0].call(torch_debug_info)
        assert "agent.thread_pool_size" in merged and "num_owner_rrefs" in " ".join(merged)
        group.shutdown()


def gil_profiling() -> bool:
    import torch.distributed.rpc as rpc

    before = "agent.gil_average_wait_time_us" in debug_info()
    rpc.enable_gil_profiling(True)
    rpc.rpc_sync("worker0", name_here)
    after = float(debug_info()["agent.gil_average_wait_time_us"])
    rpc.enable_gil_profiling(False)
    return not before and after >= 0


def test_the_fifth_of_tensorpipes_metrics():
    with Group(1) as group:
        assert group[0].call(gil_profiling)
        group.shutdown()


def test_tcp_when_unix_sockets_are_switched_off():
    with Group(2, {"WEFT_UNIX_SOCKET": "0"}) as group:
        group[0].call(send_bytes, "worker1", 10)
        assert group[0].call(debug_info)["agent.peer.worker1.transport"] == "tcp"
        group.shutdown()


def surface() -> dict:
    import weft

    return {
        "all": sorted(weft.__all__),
        "undocumented": [
            name
            for name in weft.__all__
            if not name.startswith("__") and not inspect.getdoc(getattr(weft, name))
        ],
        "version": weft.__version__,
    }


def test_every_public_name_is_documented(alone):
    found = alone.call(surface)
    assert found["undocumented"] == []
    release = found["version"].partition("+")[0]  # what follows names torch's
    assert release.count(".") == 2
    assert {"RpcBackendOptions", "init_rpc", "wait_all_workers", "library_path"} <= set(
        found["all"]
    )


def test_a_bad_worker_name():
    with Workers(1) as workers:
        for name in ("a b", "x" * 200, "ü"):
            error = workers[0].fails(join, 0, 1, workers.meeting, name=name)
            assert "name" in error.message
