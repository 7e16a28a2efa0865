"""The runner's self-test: it names what failed, kills what hangs, counts what is skipped."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

_HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(_HERE.parent))

from conformance import sample, skips  # noqa: E402 - only after the path is set
from conformance.cases import FAILED, Verdict  # noqa: E402
from conformance.full_exit import FullExitProcess  # noqa: E402

_FORKED = multiprocessing.get_context("fork")


class Runner:
    """Starts run.py on the fake tests and keeps what it said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.child_pid = folder / "child"
        self.lines: list[str] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(_HERE / "run.py"), "--catalogue", "conformance.fake_suites"]
        environment = os.environ | {
            "FAKE_CHILD_PID": str(self.child_pid),
            "FAKE_FIFO": str(self.folder / "fifo"),
            "FAKE_MARKER": str(self.folder / "marker"),
        }
        pipe = subprocess.PIPE
        command += arguments
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        with self.start("--json", str(result), *arguments) as process:
            out, err = process.communicate(timeout=60)
        assert err == ""
        self.lines = out.splitlines()
        content = json.loads(result.read_text()) if result.exists() else {}
        return process.returncode, content

    def child_is_gone(self) -> bool:
        """Whether the process that the fake test started has ended."""
        try:
            ended = os.pidfd_open(int(self.child_pid.read_text()))
        except ProcessLookupError:
            return True
        with os.fdopen(ended, "rb"):
            return bool(select.select([ended], [], [], 2)[0])


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_counts_and_names(runner: Runner) -> None:
    code, result = runner("--only", "passes|fails$|skips", "--logs", str(runner.folder / "logs"))
    assert code == 1
    assert runner.lines[-1] == "1 passed, 1 failed, 1 skipped"
    assert (result["passed"], result["failed"], result["skipped"]) == (1, 1, 1)
    assert [failure["name"] for failure in result["failures"]] == ["FakeTest.test_fails"]
    assert "one is not two" in result["failures"][0]["reason"]
    assert any(line.startswith("FAIL  FakeTest.test_fails") for line in runner.lines)
    assert "SKIP  FakeTest.test_skips: there is nothing to test here" in runner.lines
    assert "MISSING NoSuchTest: left out" in runner.lines
    assert "one is not two" in (runner.folder / "logs/FakeTest.test_fails.txt").read_text()


def test_a_hanging_test_is_killed_and_named(runner: Runner) -> None:
    code, result = runner("--only", "hangs|passes", "--timeout", "1.5", "--jobs", "1")
    assert code == 1
    assert runner.lines[-1] == "1 passed, 1 failed, 0 skipped", "the run goes on after a hang"
    assert result["failures"][0]["name"] == "FakeTest.test_hangs"
    assert "killed after" in result["failures"][0]["reason"]
    text = "\n".join(runner.lines)
    assert "about to hang" in text, "the tail of its output is shown"
    assert "in test_hangs" in text, "and where it was"
    assert runner.child_is_gone(), "the whole process group is killed"


def test_a_crash_is_a_failure(runner: Runner) -> None:
    code, result = runner("--only", "crashes|passes")
    assert code == 1
    assert runner.lines[-1] == "1 passed, 1 failed, 0 skipped"
    assert result["failures"][0]["name"] == "FakeTest.test_crashes"
    assert "-6" in result["failures"][0]["reason"]


def test_nothing_outlives_its_test(runner: Runner) -> None:
    code, _ = runner("--only", "leaves_a_child")
    assert code == 0
    assert runner.child_is_gone()


def test_a_stopped_run_leaves_nothing_behind(runner: Runner) -> None:
    with runner.start("--only", "hangs") as process:
        wait_until(
            lambda: runner.child_pid.exists() and runner.child_pid.read_text(),
            "the fake test starts its child",
        )
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # as `timeout` does, to the process and to its group
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert runner.child_is_gone()


def test_lanes_overlap(runner: Runner) -> None:
    options = ("--only", "meets_another", "--repeat", "2", "--timeout", "20")
    assert runner(*options, "--jobs", "2")[0] == 0
    assert runner.lines[-1] == "2 passed, 0 failed, 0 skipped"


def test_a_known_flaky_test_is_tried_again_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conformance import pool
    from conformance.fake_suites import load
    from conformance.report import Report

    monkeypatch.setenv("FAKE_MARKER", str(tmp_path / "marker"))
    monkeypatch.setitem(skips.FLAKY["WEFT"], "FakeTest.test_fails_once", "it is made so")
    cases = [case for case in load("WEFT")[0] if case.method == "test_fails_once"]
    report = Report(1)
    pool.run(
        cases,
        lanes=1,
        timeout=20,
        attempts=lambda case: skips.attempts("WEFT", case.name),
        on_verdict=report.add,
        on_retry=report.retry,
    )
    assert report.finish() == 0
    assert report.retried == ["FakeTest.test_fails_once: passed on attempt 2"]


def test_an_unknown_selection_is_no_success(runner: Runner) -> None:
    assert runner("--only", "no_such_test")[0] == 5
    assert runner("--only", "passes", "--only", "fails")[0] == 5
    assert runner("--suite", "NoSuchSuite")[0] == 2


def abort_in_a_static_destructor() -> None:
    faulthandler.disable()  # the traceback would be noise
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(ctypes.cast(libc.abort, ctypes.c_void_p), None, None)


def abort_in_an_atexit_handler() -> None:
    faulthandler.disable()
    atexit.register(os.abort)


@pytest.mark.parametrize("plant", [abort_in_a_static_destructor, abort_in_an_atexit_handler])
def test_a_full_exit_runs_what_a_forked_rank_skips(plant: Callable[[], None]) -> None:
    forked, full = _FORKED.Process(target=plant), FullExitProcess(target=plant)
    for process in (forked, full):
        process.start()
        process.join(20)
    assert forked.exitcode == 0, "os._exit runs neither"
    assert full.exitcode == -signal.SIGABRT


def test_a_full_exit_keeps_the_exit_code() -> None:
    process = FullExitProcess(target=sys.exit, args=(7,))
    process.start()
    process.join(20)
    assert process.exitcode == 7


def test_headline_is_the_exception() -> None:
    text = "Traceback ...\n  File x\nRuntimeError: worker 'b' (rank 1) is lost\nAt:\n  somewhere\n"
    assert Verdict(FAILED, text).headline == "RuntimeError: worker 'b' (rank 1) is lost"
    assert Verdict(FAILED, "\n").headline == ""


def test_samples_and_skips_are_well_formed() -> None:
    short = sample.names(sample.SHORT)
    full_exit, spawned = sample.names(sample.FULL_EXIT), sample.names(sample.SPAWN)
    assert 55 <= len(short) <= 75
    assert 30 <= len(full_exit) <= 40
    assert 8 <= len(spawned) <= 12, "each costs as much as four of the others"
    assert not full_exit & spawned
    listed = [*short, *full_exit, *spawned]
    for table in (skips.SKIPS, skips.FLAKY):
        for names in table.values():
            assert all(len(reason) > 20 for reason in names.values()), "a reason, in words"
            listed += names
    assert all(name.count(".") == 1 and ".test_" in name for name in listed)
