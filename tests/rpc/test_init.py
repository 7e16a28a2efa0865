"""init_rpc: which backend one gets, and that groups which cannot form say so, on every worker."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port
from workers import Group, WorkerError, Workers, join, leave

SOON = 15  # seconds in which an error that needs no waiting must have come


# Which backend.


def init_alone(backend: str | None, options: str | None) -> tuple[str, str]:
    """A group of one; the agent's class and how torch.add through it goes."""
    import torch
    import torch.distributed.rpc as rpc

    import weft

    made = {
        None: lambda: None,
        "TENSORPIPE": lambda: rpc.TensorPipeRpcBackendOptions(rpc_timeout=30),
        "WEFT": lambda: weft.RpcBackendOptions(rpc_timeout=30),
    }[options]()
    kind = None if backend is None else rpc.BackendType[backend]
    rpc.init_rpc("alone", backend=kind, rank=0, world_size=1, rpc_backend_options=made)
    agent = type(rpc.api._get_current_rpc_agent()).__name__
    answer = rpc.rpc_sync("alone", torch.add, args=(torch.ones(2), 1))
    rpc.shutdown()
    return agent, str(answer.tolist())


@pytest.mark.parametrize(
    ("backend", "options", "agent"),
    [
        (None, None, "TensorPipeAgent"),
        (None, "TENSORPIPE", "TensorPipeAgent"),
        ("TENSORPIPE", None, "TensorPipeAgent"),
        ("TENSORPIPE", "TENSORPIPE", "TensorPipeAgent"),
        (None, "WEFT", "WeftAgent"),
        ("WEFT", None, "WeftAgent"),
        ("WEFT", "WEFT", "WeftAgent"),
    ],
)
def test_which_backend(backend, options, agent):
    with Workers(1, {"MASTER_PORT": str(free_port())}) as workers:
        assert workers[0].call(init_alone, backend, options) == (agent, "[2.0, 2.0]")


def init_alone_without(*variables: str) -> str:
    import os

    import torch
    import torch.distributed.rpc as rpc

    import weft

    for name in variables:
        os.environ.pop(name, None)
    weft.init_rpc("alone", world_size=1)
    answer = rpc.rpc_sync("alone", torch.add, args=(torch.ones(2), 1))
    rpc.shutdown()
    return str(answer.tolist())


@pytest.mark.parametrize("missing", [("MASTER_ADDR", "MASTER_PORT", "RANK"), ("RANK",)])
def test_a_group_of_one_needs_no_rank_and_no_place_to_meet(missing):
    with Workers(2) as workers:
        assert workers.all(init_alone_without, *missing) == ["[2.0, 2.0]"] * 2


def backend_types() -> tuple[bool, list[str]]:
    import torch.distributed.rpc as rpc
    from torch.distributed.rpc import BackendType, backend_registry

    import weft  # noqa: F401

    same = BackendType is backend_registry.BackendType is rpc.BackendType
    return same, sorted(member.name for member in BackendType)


def test_the_enum_of_backends_is_one():
    with Workers(1) as workers:
        assert workers[0].call(backend_types) == (True, ["TENSORPIPE", "WEFT"])


def wrong_options(kind: str) -> None:
    import torch.distributed.rpc as rpc

    rpc.init_rpc(
        "alone",
        backend=rpc.BackendType[kind],
        rank=0,
        world_size=1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(),
    )


def test_weft_wants_its_own_options():
    with Workers(1, {"MASTER_PORT": str(free_port())}) as workers:
        error = workers[0].fails(wrong_options, "WEFT")
        assert error.kind == "TypeError"
        assert "weft.RpcBackendOptions" in error.message


def ask_next(world: int) -> str:
    """A Python call and a built-in operator to the next worker of the group."""
    import torch
    import torch.distributed.rpc as rpc

    me = rpc.get_worker_info()
    to = (me.id + 1) % world
    assert rpc.rpc_sync(to, torch.add, args=(torch.ones(1), me.id)).item() == 1 + me.id
    return rpc.rpc_sync(to, name_here)


def name_here() -> str:
    import torch.distributed.rpc as rpc

    return rpc.get_worker_info().name


@pytest.mark.parametrize("method", ["env://", "tcp://127.0.0.1:{port}", "file"])
def test_ways_to_meet_and_to_meet_again(method):
    """The same processes form three groups, one after the other."""
    port = free_port()
    with Workers(3, {"MASTER_PORT": str(port)}) as workers:
        meeting = workers.meeting if method == "file" else method.format(port=port)
        for generation in range(3):
            for rank, worker in enumerate(workers):
                worker.start(join, rank, 3, meeting, name=f"g{generation}w{rank}")
            for worker in workers:
                worker.result()
            assert workers.all(ask_next, 3) == [f"g{generation}w{rank}" for rank in (1, 2, 0)]
            workers.all(leave)


def meet_twice_with_the_same_options(meeting: str, port: int) -> list[str]:
    import torch.distributed.rpc as rpc

    import weft

    options = weft.RpcBackendOptions()
    hosts = []
    for options.init_method in (f"tcp://localhost:{port}", meeting):
        rpc.init_rpc("alone", rpc.BackendType.WEFT, 0, 1, options)
        hosts.append(options.master_host)
        rpc.shutdown()
    return hosts


def test_the_same_options_meet_elsewhere():
    with Workers(1) as workers:
        hosts = workers[0].call(meet_twice_with_the_same_options, workers.meeting, free_port())
        assert hosts == ["localhost", ""]


def test_init_twice_is_an_error_and_leaves_the_first():
    with Group(2) as group:
        error = group[0].fails(join, 0, 1, group.meeting + "2")
        assert "already initialized" in error.message
        assert group[0].call(ask_next, 2) == "worker1"
        group.shutdown()


def test_a_failed_init_can_be_tried_again():
    """Under the same rank: torch's distributed autograd keeps the first it was told."""
    with Workers(1) as workers:
        workers[0].fails(join, 0, 1, workers.meeting, name="a name with blanks")
        workers[0].call(join, 0, 1, workers.meeting + "2")
        workers[0].call(leave)


# Groups that cannot form. Each case: what every process is told, and what all must say.


def all_fail(starts: list[dict], environments: list[dict] | None = None, within: float = SOON):
    """Starts one process per entry; all must fail within the bound. Returns their errors."""
    with Workers(0) as workers:
        for i, start in enumerate(starts):
            worker = workers.add(environments[i] if environments else None)
            options = {"meeting": workers.meeting, "rpc_timeout": 10, **start}
            worker.start(join, **options)
        began = time.monotonic()
        errors = [worker.failure(within) for worker in workers]
        assert time.monotonic() - began < within
        return errors


def test_two_workers_of_one_name():
    errors = all_fail([{"rank": r, "world": 3, "name": "bo" if r else "al"} for r in range(3)])
    for error in errors:
        assert "RPC worker name 'bo' is not unique" in error.message
        assert "rank 1 and 2" in error.message


@pytest.mark.parametrize("rank", [2, 7])
def test_a_rank_out_of_range(rank):
    [error] = all_fail([{"rank": rank, "world": 2}])
    assert error.kind == "ValueError"
    assert f"rank {rank} is out of range for world_size 2" in error.message


def test_a_rank_out_of_range_is_told_before_the_store_waits():
    program = """
import torch.distributed as dist, weft
dist.init_process_group("weft", rank=3, world_size=2, init_method="tcp://127.0.0.1:1")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert "ValueError: rank 3 is out of range for world_size 2" in run.stderr


def test_a_negative_rank():
    """torch's distributed autograd refuses it before any backend is asked."""
    [error] = all_fail([{"rank": -3, "world": 2}])
    assert error.kind == "RuntimeError"


def test_the_same_rank_twice():
    errors = all_fail([{"rank": 0, "world": 2, "name": name} for name in ("al", "bo")])
    for error in errors:
        assert "two workers were started with rank 0" in error.message


def test_a_missing_rank_is_named_on_the_terminal_and_in_the_error():
    with Workers(2) as workers:
        for rank, worker in enumerate(workers):
            worker.start(join, rank, 4, workers.meeting, rpc_timeout=9)
        for rank, worker in enumerate(workers):
            error = worker.failure(30)
            assert f"worker 'worker{rank}' (rank {rank})" in error.message
            assert re.search(r"gave up waiting for ranks 2, 3 of 4 after \d+ s", error.message)
            waits = rf"weft: worker 'worker{rank}' \(rank {rank}\) waits for ranks 2, 3"
            assert re.search(waits + r" \(\d s of 9 s\)", worker.output())


@pytest.mark.parametrize("first", [0, 1])
def test_a_missing_rank_with_a_tcp_store(first):
    """Rank 0 serves the store: whoever waits, it must be bounded by rpc_timeout."""
    with Workers(1, {"MASTER_PORT": str(free_port())}) as workers:
        began = time.monotonic()
        limit = 9 if first == 0 else 2  # 9: long enough for a line about the wait
        error = workers[0].fails(join, first, 2, "env://", rpc_timeout=limit, timeout=30)
        assert time.monotonic() - began < 20
        if first == 0:
            assert "gave up waiting for rank 1 of 2" in error.message
            assert re.search(r"waits for rank 1 \(\d s of 9 s\)", workers[0].output())


def test_a_store_that_nobody_serves_is_said():
    port = free_port()
    with Workers(1, {"MASTER_PORT": str(port)}) as workers:
        workers[0].start(join, 1, 2, "env://", rpc_timeout=12)
        said = workers[0].wait_for_output("waits for rank 0 at")
        where = rf"waits for rank 0 at 127\.0\.0\.1:{port}, nobody listens \(\d+ s of 12 s\)"
        assert re.search(where, said)
        workers[0].failure()


UNDER_TORCHRUN = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "29500"}


def test_another_store_than_torchruns_is_advised_against():
    port = free_port()
    with Workers(1, UNDER_TORCHRUN) as workers:
        error = workers[0].fails(join, 0, 2, f"tcp://127.0.0.1:{port}", rpc_timeout=7, timeout=60)
        use = "; under torchrun no rank serves a Store: use that of 127.0.0.1:29500, "
        assert error.message.endswith(f'{use}init_method="env://"')
        where = f"waits for a Store at 127.0.0.1:{port}, nobody listens (5 s of 7 s){use}"
        assert where in workers[0].output()


def test_a_group_of_one_under_torchrun_has_a_store_of_its_own():
    with Workers(1, UNDER_TORCHRUN) as workers:
        assert workers[0].call(init_alone_without) == "[2.0, 2.0]"


def test_a_name_of_the_master_that_rank_0_cannot_resolve_is_said():
    with Workers(1, {"MASTER_ADDR": "nosuch.invalid", "MASTER_PORT": "29500"}) as workers:
        workers[0].start(join, 0, 2, "env://", rpc_timeout=20)
        workers[0].wait_for_output("waits for rank 0 at nosuch.invalid:29500, which cannot be")
        workers[0].kill()


def join_process_group(port: int, backend: str) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    place = {"init_method": f"tcp://127.0.0.1:{port}", "rank": 1, "world_size": 2}
    dist.init_process_group(backend, **place, timeout=timedelta(seconds=7))


@pytest.mark.parametrize("backend", ["weft", "gloo"])
def test_a_store_that_nobody_serves_is_said_by_a_process_group(backend):
    port = free_port()
    with Workers(1) as workers:
        workers[0].fails(join_process_group, port, backend, timeout=60)
        where = rf"waits for rank 0 at 127\.0\.0\.1:{port}, nobody listens \(5 s of 7 s\)"
        assert bool(re.search(where, workers[0].output())) == (backend == "weft")


def test_another_world_size():
    """Each sees it, the one that expects more workers too, without waiting for them."""
    errors = all_fail([{"rank": 0, "world": 2}, {"rank": 1, "world": 3}])
    for error in errors:
        assert "different world_size" in error.message
        assert "'worker0'" in error.message and "'worker1'" in error.message


def test_static_and_dynamic_workers_do_not_mix():
    with Workers(2) as workers:
        port = free_port()
        meeting = f"tcp://127.0.0.1:{port}"
        workers[0].call(join, 0, None, meeting, rpc_timeout=10)
        error = workers[1].fails(join, 1, 2, meeting, rpc_timeout=10)
        assert "mixes statically and dynamically initialized members" in error.message


def write_record(path: str, rank: int, text: str) -> None:
    """What another Weft's worker would leave in the store of the first init_rpc."""
    import torch.distributed as dist

    store = dist.PrefixStore("weft", dist.PrefixStore("rpc_prefix_0", dist.FileStore(path, 2)))
    store.set(f"member/{rank}", text)
    store.set(f"ready/{rank}", "ready")
    write_record.store = store  # FileStore removes its file with its last user


RECORD = (
    "weft={weft}\nwire={wire}\nrank=1\nworld=2\nname=other\nauth=store\npolicy=any\n"
    "address=weft1;tcp=127.0.0.1:1\ndevice_count=0\n"
)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (RECORD.format(weft="9.9.9", wire=77), "speak different versions of Weft's protocol"),
        ("\x80\x04cos\nsystem\n", "not a worker record"),
        (RECORD.format(weft="0.1.0", wire=1).replace("rank=1", "rank=0"), "not a worker record"),
        (RECORD.format(weft="0.1.0", wire="one"), "not a worker record"),
        ("", "not a worker record"),
        ("x" * (2 << 20), "not a worker record"),
    ],
    ids=["version", "pickle", "rank", "number", "empty", "huge"],
)
def test_a_record_of_another_kind(record, expected):
    with Workers(2) as workers:
        workers[1].call(write_record, workers.meeting.removeprefix("file://"), 1, record)
        error = workers[0].fails(join, 0, 2, workers.meeting, rpc_timeout=10, timeout=SOON)
        assert expected in error.message
        if "9.9.9" in record:
            assert "9.9.9" in error.message and "'other'" in error.message


def write_outcome(path: str, said: bytes) -> None:
    import torch.distributed as dist

    store = dist.PrefixStore("weft", dist.PrefixStore("rpc_prefix_0", dist.FileStore(path, 2)))
    store.set("outcome", said)
    write_outcome.store = store


def test_what_the_store_says_of_the_start_is_shown_printable(tmp_path):
    with Workers(2) as workers:
        workers[0].call(write_outcome, str(tmp_path / "store"), b"\x1b[31mbad\xff\nworse")
        with pytest.raises(WorkerError, match=r"\\x1b\[31mbad\\xff\n +worse"):
            workers[1].call(join, 0, 1, f"file://{tmp_path}/store")


def join_tensorpipe(rank: int, world: int, meeting: str, rpc_timeout: float) -> None:
    import torch.distributed.rpc as rpc

    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.BackendType.TENSORPIPE,
        rank=rank,
        world_size=world,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method=meeting, rpc_timeout=rpc_timeout
        ),
    )


def test_a_worker_of_another_backend():
    """Weft names who is missing and what may be the reason. TensorPipe brings up a Gloo group first,
    with a timeout of its own of 30 minutes, and waits that long: nothing of ours runs there."""
    with Workers(2) as workers:
        workers[0].start(join, 0, 2, workers.meeting, rpc_timeout=3)
        workers[1].start(join_tensorpipe, 1, 2, workers.meeting, 3)
        ours = workers[0].failure(SOON)
        assert "gave up waiting for rank 1 of 2" in ours.message
        assert "another backend than WEFT" in ours.message
        workers[1].kill()


# Keys.


def key_file(folder: Path, name: str = "key", text: str | None = None, mode: int = 0o600) -> str:
    path = folder / name
    path.write_text(secrets.token_hex(32) + "\n" if text is None else text)
    path.chmod(mode)
    return str(path)


def given_away(file: str) -> str:
    """To another user who is not root, which root alone may do."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(file, 1, 1)
    return file


def test_one_key_file_for_all(tmp_path):
    with Group(2, {"WEFT_AUTH_KEY_FILE": key_file(tmp_path)}) as group:
        assert group[0].call(ask_next, 2) == "worker1"
        group.shutdown()


def test_the_option_goes_before_the_variable(tmp_path):
    environment = {"WEFT_AUTH_KEY_FILE": str(tmp_path / "none")}
    with Group(2, environment, auth_key_file=key_file(tmp_path)) as group:
        assert group[0].call(ask_next, 2) == "worker1"
        group.shutdown()


def test_a_key_file_on_one_worker_only(tmp_path):
    environments = [{"WEFT_AUTH_KEY_FILE": key_file(tmp_path)}, {}]
    errors = all_fail([{"rank": r, "world": 2} for r in range(2)], environments)
    for error in errors:
        assert "take the group's key from different places" in error.message
        assert "WEFT_AUTH_KEY_FILE" in error.message


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda folder: str(folder / "missing"), "missing"),
        (lambda folder: key_file(folder, text=""), "key"),
        (lambda folder: key_file(folder, text="0123"), "64"),
        (lambda folder: key_file(folder, text="g" * 64), "hex"),
        (lambda folder: key_file(folder, text="0" * 66), "64"),
        (lambda folder: key_file(folder, mode=0o644), "chmod 600"),
        (lambda folder: key_file(folder, mode=0o620), "chmod g-w"),
        (lambda folder: given_away(key_file(folder)), "belongs to another user (1)"),
        (lambda folder: str(folder), "regular file"),
    ],
    ids=[
        "missing",
        "empty",
        "short",
        "not-hex",
        "long",
        "readable-by-all",
        "group-writes",
        "of-another",
        "folder",
    ],
)
def test_a_bad_key_file_aborts(tmp_path, make, says):
    """It never falls back to the key in the Store."""
    path = make(tmp_path)
    [error] = all_fail([{"rank": 0, "world": 1}], [{"WEFT_AUTH_KEY_FILE": path}])
    assert path in error.message
    assert says in error.message
    assert "worker 'worker0' (rank 0)" in error.message


def test_different_keys_show_at_the_start(tmp_path):
    """Each worker is told, by name, though none has connected; nobody is shown a key."""
    keys = [{"WEFT_AUTH_KEY_FILE": key_file(tmp_path, f"key{rank}")} for rank in range(2)]
    errors = all_fail([{"rank": rank, "world": 2} for rank in range(2)], keys)
    for error in errors:
        assert (
            "worker 'worker1' (rank 1) and worker 'worker0' (rank 0) have different keys in their "
            "key files" in error.message
        )
        for rank in range(2):
            assert (tmp_path / f"key{rank}").read_text().strip() not in error.message


# Where it listens.


def test_an_interface_by_name_and_by_address():
    per_rank = [{"interface": "lo"}, {"interface": "127.0.0.1"}]
    with Group(2, per_rank=per_rank) as group:
        assert group[0].call(ask_next, 2) == "worker1"
        group.shutdown()


@pytest.mark.parametrize("way", ["option", "variable"])
def test_an_unknown_interface_lists_those_there_are(way):
    start = {"rank": 0, "world": 1}
    environment = {}
    if way == "option":
        start["interface"] = "nosuch0"
    else:
        environment["WEFT_SOCKET_IFNAME"] = "nosuch0"
    [error] = all_fail([start], [environment])
    assert "nosuch0" in error.message
    assert "lo 127.0.0.1" in error.message
