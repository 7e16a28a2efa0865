"""Workers in which native code holds the GIL: where they are is shown all the same."""

from __future__ import annotations

import ctypes
import faulthandler
import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until
from workers import Group, Workers, join

HELD = "a thread holds Python's lock; "
LAST = signal.SIGRTMAX  # whose handler is used, unless the program has one
_caught: list[int] = []


def hold(pipe: str) -> None:
    """In native code that does not release the GIL, until somebody writes into the pipe."""
    file = os.open(pipe, os.O_RDWR)
    ctypes.PyDLL(None).read(file, ctypes.create_string_buffer(1), 1)  # where it is held
    os.close(file)


def line_of_hold() -> int:
    lines, first = inspect.getsourcelines(hold)
    return first + next(number for number, line in enumerate(lines) if "where it is held" in line)


def let_go(pipe: str) -> None:
    Path(pipe).write_bytes(b"x")


def all_stacks() -> dict[str, str]:
    import weft

    return weft.stacks()


def page() -> str:
    """As weft.top --stacks reads it."""
    from weft import top
    from weft._observe import exporter

    host, port = exporter.address()
    (found,) = [one for one in top.fetch([f"{host}:{port}"], "stacks") if one["name"] == "worker1"]
    return found["stacks"]


def asked(worker: str) -> str:
    from weft import _C

    return _C._ask_for_stacks(worker, 20.0).wait()


def registered() -> list[int]:
    """The signals whose handlers are faulthandler's, of those that Weft may take."""
    import faulthandler

    return [one for one in range(LAST - 7, LAST + 1) if faulthandler.unregister(one)]


def catch(number: int) -> None:
    signal.signal(number, lambda number, _: _caught.append(number))


def caught() -> list[int]:
    return _caught


@pytest.fixture
def pipe(tmp_path: Path) -> str:
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    return path


def test_the_stack_of_a_worker_that_holds_the_gil_is_shown(pipe):
    with Group(3, {"WEFT_METRICS": "127.0.0.1:0"}, rpc_timeout=30) as group:
        group[1].start(hold, pipe)
        wait_until(lambda: HELD in group[0].call(all_stacks)["worker1"], "the GIL is held")
        found = group[0].call(all_stacks)
        assert f'"{__file__}", line {line_of_hold()} in hold' in found["worker1"]
        assert f"{HELD}they are at, the last calls first:\nMain thread 0x" in found["worker1"]
        assert "no Python frame" not in found["worker1"]
        assert found["worker2"].startswith("MainThread:\n")
        assert f"line {line_of_hold()} in hold" in group[2].call(page)
        let_go(pipe)
        group[1].result()
        assert group[0].call(all_stacks)["worker1"].startswith("MainThread:\n")
        # Where the GIL can be had nobody reads the frames of threads that run.
        assert group[0].call(asked, "worker1") == ""
        group.shutdown()


def fill() -> None:
    """More calls for worker1 than it has threads for them; nobody waits for their answers."""
    import torch.distributed.rpc as rpc

    for _ in range(40):
        rpc.rpc_async("worker1", caught)


def test_calls_that_wait_for_the_gil_do_not_delay_the_question(pipe):
    with Group(2, rpc_timeout=30) as group:
        group[1].start(hold, pipe)
        wait_until(lambda: HELD in group[0].call(all_stacks)["worker1"], "the GIL is held")
        group[0].call(fill)
        for _ in range(2):
            assert "in hold" in group[0].call(all_stacks)["worker1"]
        let_go(pipe)
        group[1].result()
        group.shutdown()


def ask_at_once() -> list[str]:
    from weft import _C

    waits = [_C._ask_for_stacks("worker1", 20.0) for _ in range(20)]
    return [one.wait() for one in waits]


def test_those_who_ask_at_once_all_get_the_stacks(pipe):
    with Group(2, rpc_timeout=30) as group:
        group[1].start(hold, pipe)
        wait_until(lambda: HELD in group[0].call(all_stacks)["worker1"], "the GIL is held")
        assert all("in hold" in text for text in group[0].call(ask_at_once))
        let_go(pipe)
        group[1].result()
        assert group[0].call(ask_at_once) == [""] * 20
        group.shutdown()


def sleep_in_threads(count: int) -> None:
    for _ in range(count):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def place() -> str:
    from weft._observe import held_gil

    return held_gil.ask_place("worker1")()


def test_among_too_many_threads_the_main_one_is_not_made_up(pipe):
    with Group(2, rpc_timeout=30) as group:
        group[1].call(sleep_in_threads, 120)
        group[1].start(hold, pipe)
        wait_until(lambda: group[0].call(place), "the GIL is held")
        assert group[0].call(place) == "a thread holds Python's lock"
        let_go(pipe)
        group[1].result()
        group.shutdown()


def call_it(pipe: str) -> None:
    import torch.distributed.rpc as rpc

    rpc.rpc_sync("worker1", hold, args=(pipe,))


def test_a_hang_is_reported_by_both(pipe):
    with Group(2, {"WEFT_HANG_REPORT": "0.4"}, rpc_timeout=60) as group:
        group[1].call(caught)  # so that this module has been imported there
        group[0].start(call_it, pipe)
        said = group[0].wait_for_output("a python call waits for worker 'worker1' for")
        assert f"; worker1: {HELD}its main thread is at " in said
        said = group[1].wait_for_output("a thread has held Python's lock for 0.4 s")
        group[1].wait_for_output(f'"{__file__}", line {line_of_hold()} in hold')
        let_go(pipe)
        group[0].result()
        assert group[1].output().count(f"line {line_of_hold()} in hold") == 1
        group.shutdown()


def test_a_signal_of_the_programs_is_left_alone():
    with Workers(1) as workers:
        workers[0].call(catch, LAST)
        workers[0].call(join, 0, 1, workers.meeting)
        assert workers[0].call(registered) == [LAST - 1]
        os.kill(workers[0].pid, LAST)
        wait_until(lambda: workers[0].call(caught) == [LAST], "the program's handler has run")


def test_a_program_that_takes_the_signal_later_has_it(pipe):
    with Group(2, rpc_timeout=30) as group:
        group[1].call(catch, LAST)
        group[1].start(hold, pipe)
        wait_until(lambda: "WEFT_STACKS_SIGNAL" in group[0].call(asked, "worker1"), "it is held")
        let_go(pipe)
        group[1].result()
        assert group[1].call(caught) == []
        group.shutdown()


def fork_and_hold(pipe: str) -> int:
    """What ends a forked child that arms anew; what it says comes in the worker's output."""
    from weft._observe import held_gil

    child = os.fork()
    if child == 0:
        held_gil.start(0.2)
        hold(pipe)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fork_with_the_signal_taken() -> int:
    """As above, for a child that handles it natively, of which faulthandler knows nothing."""
    from weft._observe import held_gil

    child = os.fork()
    if child == 0:
        native = ctypes.CDLL(None)
        native.signal(LAST, ctypes.cast(native.abs, ctypes.c_void_p))
        held_gil.start(0.2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_has_stacks_of_its_own(pipe):
    with Group(1, {"WEFT_HANG_REPORT": "60"}) as group:
        group[0].start(fork_and_hold, pipe)
        group[0].wait_for_output("a thread has held Python's lock for 0.2 s")
        group[0].wait_for_output(f"line {line_of_hold()} in hold")
        let_go(pipe)
        assert group[0].result() == 0
        group.shutdown()


def test_a_forked_child_leaves_a_signal_alone_that_its_program_took():
    with Group(1) as group:
        assert group[0].call(fork_with_the_signal_taken) == 0
        group[0].wait_for_output(f"the program handles signal {LAST} by now")
        group.shutdown()


ENDS_WHILE_IT_IS_HELD = """
import ctypes, sys, threading
from weft._observe import held_gil
held_gil.start(0.1)
def hold():
    while True:
        ctypes.PyDLL(None).usleep(900_000)
threading.Thread(target=hold, daemon=True).start()
sys.stdin.read()
"""


def test_a_process_ends_while_a_daemon_thread_holds_the_gil(tmp_path):
    said = tmp_path / "said"
    with said.open("w") as errors:
        program = subprocess.Popen(
            [sys.executable, "-c", ENDS_WHILE_IT_IS_HELD], stdin=subprocess.PIPE, stderr=errors
        )
    try:
        wait_until(lambda: "in hold" in said.read_text(), said.read_text, timeout=60)
        program.communicate(timeout=60)
    finally:
        program.kill()
    assert program.returncode == 0, said.read_text()
    assert "a thread has held Python's lock for 0.1 s" in said.read_text()


def refuse_files() -> None:
    def refuse(*_: object) -> int:
        raise OSError("no more files")

    os.memfd_create = refuse


def hide_proc() -> None:
    from weft._observe import held_gil

    held_gil.Path = lambda path: Path("/nowhere") / path[1:]


def switch_seldom() -> None:
    sys.setswitchinterval(1)


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        (refuse_files, "no more files"),
        (hide_proc, "No such file or directory: '/nowhere/proc/self/status'"),
        (switch_seldom, "sys.getswitchinterval() is above 0.1 s"),
    ],
)
def test_a_worker_joins_without_them(trouble, why):
    with Workers(1) as workers:
        workers[0].call(trouble)
        workers[0].call(join, 0, 1, workers.meeting)
        said = workers[0].wait_for_output(why)
        assert "no stacks while Python's lock is held: " in said


def test_where_it_is_off_there_are_no_stacks(pipe):
    with Group(2, {"WEFT_STACKS_SIGNAL": "0", "WEFT_HANG_REPORT": "0.2"}, rpc_timeout=30) as group:
        group[1].start(hold, pipe)
        silent = "does not answer within 1 s"
        wait_until(lambda: group[0].call(all_stacks)["worker1"] == silent, "the GIL is held")
        assert group[0].call(asked, "worker1") == ""
        let_go(pipe)
        group[1].result()
        assert group[1].call(registered) == []
        assert "has held Python's lock" not in group[1].output()
        group.shutdown()


def test_under_the_policy_script_peers_do_not_see_them(pipe):
    policies = [{}, {"request_policy": "script"}]
    with Group(2, {"WEFT_HANG_REPORT": "0.2"}, per_rank=policies, rpc_timeout=30) as group:
        group[1].start(hold, pipe)
        group[1].wait_for_output("a thread has held Python's lock")
        assert group[0].call(asked, "worker1") == ""
        let_go(pipe)
        group[1].result()
        group.shutdown()


@pytest.mark.parametrize("text", ["SIGUSR1", "-3", "9", "32", "65"])
def test_what_is_no_signal_is_refused(text):
    with Workers(1, {"WEFT_STACKS_SIGNAL": text}) as workers:
        error = workers[0].fails(join, 0, 1, workers.meeting)
        assert f"WEFT_STACKS_SIGNAL must be the number of a signal, or 0, got '{text}'" in str(
            error
        )


def join_without_handlers_of_faults(meeting: str) -> None:
    faulthandler.disable()
    join(0, 1, meeting)


def test_a_signal_that_cannot_be_had_is_warned_of():
    with Workers(1, {"WEFT_STACKS_SIGNAL": str(int(signal.SIGFPE))}) as workers:
        workers[0].call(join_without_handlers_of_faults, workers.meeting)
        workers[0].wait_for_output("choose another signal by WEFT_STACKS_SIGNAL, or 0")


def test_a_signal_that_is_taken_is_warned_of():
    with Workers(1, {"WEFT_STACKS_SIGNAL": str(int(signal.SIGUSR1))}) as workers:
        workers[0].call(join, 0, 1, workers.meeting)
        workers[0].wait_for_output(f"the program handles signal {int(signal.SIGUSR1)}")
