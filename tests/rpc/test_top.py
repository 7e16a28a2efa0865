"""``python -m weft.top``: what it shows of a group, of a worker that does not answer, of ranks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import unittest.mock
import urllib.request
from typing import NamedTuple

import pytest
from ports import free_port
from waiting import wait_until
from workers import Group

from weft import top

_gate = threading.Event()
_held = threading.Event()
_calls: list[object] = []


def hold() -> int:
    _held.set()
    assert _gate.wait(60)
    return 7


def begin(to: str) -> None:
    import torch.distributed.rpc as rpc

    _calls.append(rpc.rpc_async(to, hold, timeout=50))


def end() -> int:
    return _calls.pop().wait()


def wait_until_held() -> None:
    assert _held.wait(30)


def release() -> None:
    _gate.set()


def address() -> str:
    from weft._observe import exporter

    host, port = exporter.address()
    return f"{host}:{port}"


def all_stacks() -> dict[str, str]:
    import weft

    return weft.stacks()


class Shown(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def look(*arguments: str) -> Shown:
    """What `python -m weft.top` shows where its output is no terminal."""
    out, err = io.StringIO(), io.StringIO()
    wide = unittest.mock.patch.dict(os.environ, COLUMNS="240")
    with wide, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = top.main(list(arguments))
    return Shown(status, out.getvalue(), err.getvalue())


def seen(*arguments: str) -> list[dict]:
    found = look(*arguments, "--once", "--json")
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


@pytest.fixture
def group():
    with Group(3, {"WEFT_METRICS": "127.0.0.1:0"}, rpc_timeout=30) as members:
        yield members


def test_it_shows_all_workers_and_what_they_wait_for(group):
    group[0].call(begin, "worker1")
    place = group[2].call(address)
    first, second, third = seen(place)
    assert [first["name"], second["name"], third["name"]] == ["worker0", "worker1", "worker2"]
    assert [first["pid"], second["pid"], third["pid"]] == [member.pid for member in group]
    (wait,) = [one for one in first["waits"] if one["what"] == "python"]
    assert (wait["whom"], wait["timeout"]) == ("worker1", 50.0)
    assert second["metrics"]["counters"]["calls_served"] >= 1
    table = look(place, "--once").stdout
    assert "worker1, python call, " in table
    assert table.count("worker2") == 1
    group[1].call(release)
    assert group[0].call(end) == 7
    assert [one for one in seen(place)[0]["waits"] if one["what"] == "python"] == []
    group.shutdown()


def test_it_shows_where_the_threads_are(group):
    group[0].call(begin, "worker1")
    group[1].call(wait_until_held)
    place = group[2].call(address)
    (second,) = [one for one in seen(place, "--stacks") if one["name"] == "worker1"]
    assert "in hold\n" in second["stacks"]
    assert second["stacks"].startswith("MainThread:\n")
    found = group[2].call(all_stacks)
    assert sorted(found) == ["worker0", "worker1", "worker2"]
    assert "in hold\n" in found["worker1"]
    text = look(place, "--stacks").stdout
    assert text.index("== worker0 (rank 0)") < text.index("in hold\n") < text.index("== worker2")
    group[1].call(release)
    assert group[0].call(end) == 7
    group.shutdown()


def test_a_worker_that_does_not_answer_is_shown_as_such(group):
    place = group[0].call(address)
    os.kill(group[1].pid, signal.SIGSTOP)
    try:
        first, second, third = seen(place)
    finally:
        os.kill(group[1].pid, signal.SIGCONT)
    assert (first["error"], third["error"]) == ("", "")
    assert second["error"].startswith("does not answer within 1 s: it is stopped, or native code ")
    assert second["error"].endswith("look with py-spy dump --pid PID on its host")
    assert seen(place)[1]["error"] == ""
    group.shutdown()


def garbled(own: dict, kind: str) -> object:
    """What a worker says in place of its own state."""
    wait = {"kind": "call", "what": "x", "whom": "x", "seconds": 1.0, "timeout": 0.0, "number": 0}
    return {
        "none": None,
        "too little": {"name": "worker2", "rank": "x", "error": ""},
        "an object": {**own, "waits": [{**wait, "ranks": {1}}]},
        "a text": {**own, "metrics": {**own["metrics"], "counters": {"calls_sent": "x"}}},
        "a large number": {**own, "pid": 10**5000},
        "no number": {**own, "metrics": {**own["metrics"], "oldest_call": float("nan")}},
    }[kind]


EVIL = "[/nope] \x1b]0;x\x07\x1b[2J\r\u202e\n== worker2 (rank 2)\n"
EVIL_SHOWN = r"[/nope] \x1b]0;x\x07\x1b[2J\r"
_own: dict = {}


def forged(own: dict) -> dict:
    return {**own, "name": "worker2", "rank": 2, "error": EVIL, "host": EVIL, "stacks": EVIL}


def failed(own: dict) -> object:
    """What torch sends for an exception, whose text is then the whole error."""
    from torch.distributed.rpc.internal import RemoteException

    return RemoteException(EVIL, RuntimeError)


def answer_with(make, *args: object) -> None:
    """From here on this worker answers so, also to workers that look for a hang."""
    from weft._observe import doing, state

    if not _own:
        _own.update({**state.own_stacks(), **state.own_state()})
    state.own_state = state.own_stacks = doing.doing = lambda: make(_own, *args)


def hang_line() -> str:
    """What the line says of worker1 that reports a call to it."""
    from weft._observe import hangs
    from weft._observe.waits import Waiting

    return hangs._answers(Waiting("call", "python", "worker1", 1.0, 0.0))


def served(place: str, page: str) -> list[dict]:
    with urllib.request.urlopen(f"http://{place}/{page}", timeout=30) as answer:
        return json.load(answer)


def test_a_worker_that_answers_badly_is_one_bad_row(group):
    place = group[2].call(address)
    bad = "answers in another form than Weft's here: "
    for kind in ("too little", "an object", "a text", "a large number", "no number", "none"):
        group[1].call(answer_with, garbled, kind)
        first, second, third = served(place, "group")
        assert (first["error"], third["error"]) == ("", ""), kind
        assert (second["name"], second["rank"]) == ("worker1", 1), kind
        assert second["error"].startswith(bad), kind
    assert [one["error"][: len(bad)] for one in served(place, "stacks")] == ["", bad, ""]
    assert group[2].call(all_stacks)["worker1"].startswith(bad)
    assert bad in group[2].call(hang_line)
    table = look(place, "--once")
    assert (table.returncode, table.stdout.count("answers in another form")) == (0, 1)
    group.shutdown()


def test_what_a_worker_says_forges_and_garbles_nothing(group):
    place = group[2].call(address)
    for make in (forged, failed):
        group[1].call(answer_with, make)
        for page, option in (("group", "--once"), ("stacks", "--stacks")):
            rows = [(one["name"], one["rank"]) for one in served(place, page)]
            assert rows == [("worker0", 0), ("worker1", 1), ("worker2", 2)]
            shown = look(place, option)
            assert (shown.returncode, shown.stderr) == (0, "")
            assert EVIL_SHOWN in shown.stdout
            assert all(one.isprintable() or one == "\n" for one in shown.stdout)
        assert shown.stdout.count("\n== worker2 (rank 2)\n") == 1
        assert EVIL_SHOWN in group[0].call(all_stacks)["worker1"]
    group.shutdown()


def wait_for_rank_1(rank: int, meeting: str) -> None:
    """Ends when rank 1 comes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("weft", init_method=f"{meeting}-group", rank=rank, world_size=2)
    if rank == 1:
        assert _gate.wait(100)
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()


def awaited_by_rank_0() -> list[tuple[int, ...]]:
    import torch.distributed.rpc as rpc

    import weft

    return [one.ranks for one in rpc.rpc_sync("worker0", weft.who_waits) if one.what != "other"]


def let_rank_1_go() -> None:
    import torch.distributed.rpc as rpc

    rpc.rpc_sync("worker1", release)


def test_it_shows_which_rank_a_collective_waits_for(group):
    for rank in (0, 1):
        group[rank].start(wait_for_rank_1, rank, group.meeting)
    wait_until(lambda: (1,) in group[2].call(awaited_by_rank_0), "rank 0 waits for rank 1")
    table = look(group[2].call(address), "--once").stdout
    (row,) = [line for line in table.splitlines() if " worker0 " in line]
    assert "rank 1, all_reduce 1, " in row
    group[2].call(let_rank_1_go)
    for rank in (0, 1):
        group[rank].result()
    group.shutdown()


def test_it_shows_the_group_again_and_again_until_ctrl_c(group):
    """In a terminal: a pseudo one."""
    place = group[0].call(address)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "weft.top", place, "--interval", "0.1"]
    environment = {**os.environ, "COLUMNS": "160", "LINES": "40", "TERM": "xterm"}
    shown = ""
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as top:
        os.close(theirs)
        try:
            while shown.count("worker2") < 3:
                assert select.select([ours], [], [], 30)[0], shown
                shown += os.read(ours, 1 << 16).decode(errors="replace")
            top.send_signal(signal.SIGINT)
            with contextlib.suppress(OSError):  # the end of a terminal is an error to Linux
                while os.read(ours, 1 << 16):
                    pass
            assert top.wait(30) == 0
        finally:
            top.kill()
            os.close(ours)
    assert "waits longest for" in shown
    assert "Traceback" not in shown
    group.shutdown()


def test_under_the_policy_registered_too():
    environment = {"WEFT_METRICS": "127.0.0.1:0"}
    with Group(2, environment, request_policy="registered") as members:
        assert [one["error"] for one in seen(members[0].call(address))] == ["", ""]
        members.shutdown()


def test_a_worker_whose_port_is_taken_answers_too():
    """Two on one host with one variable, as a launcher gives it to all."""
    place = f"127.0.0.1:{free_port()}"
    with Group(2, {"WEFT_METRICS": place}, request_policy="registered") as members:
        assert [one["error"] for one in seen(place)] == ["", ""]
        members.shutdown()


def test_a_place_where_nobody_listens():
    found = look(f"127.0.0.1:{free_port()}", "--once")
    assert found.returncode == 1
    assert "does not answer" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("place", ["localhost", "localhost:http", ":9100"])
def test_what_is_no_address_is_refused(place, capsys):
    with pytest.raises(SystemExit):
        top.parse([place])
    assert f"must be HOST:PORT, got {place!r}" in capsys.readouterr().err
