"""A catalogue of tests that misbehave on purpose, for the runner's self-test. Needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import unittest
from pathlib import Path

from conformance.cases import Case


def start_a_child() -> None:
    """A process that goes on until it is killed, or for ten minutes."""
    code = "import signal; signal.alarm(600); signal.pause()"
    child = subprocess.Popen([sys.executable, "-c", code])
    Path(os.environ["FAKE_CHILD_PID"]).write_text(str(child.pid))


class FakeTest(unittest.TestCase):
    """One method for each thing that can become of a test."""

    def test_passes(self) -> None:
        """Nothing to see."""

    def test_fails(self) -> None:
        self.assertEqual(1, 2, "one is not two")

    def test_skips(self) -> None:
        self.skipTest("there is nothing to test here")

    def test_hangs(self) -> None:
        """Hangs in the test and in a process that the test started."""
        start_a_child()
        print("about to hang", flush=True)
        threading.Event().wait()

    def test_crashes(self) -> None:
        os.abort()

    def test_leaves_a_child(self) -> None:
        """Passes, but leaves a process behind."""
        start_a_child()

    def test_fails_once(self) -> None:
        marker = Path(os.environ["FAKE_MARKER"])
        if not marker.exists():
            marker.touch()
            self.fail("the first attempt fails")

    def test_meets_another(self) -> None:
        """Ends when it runs twice at a time: each end of a FIFO waits for the other to be opened."""
        fifo = Path(os.environ["FAKE_FIFO"])
        try:
            os.mkfifo(fifo)
        except FileExistsError:
            fifo.open("wb").close()
        else:
            fifo.open("rb").close()


def load(backend: str) -> tuple[list[Case], list[str]]:
    """The fake tests, whatever the backend."""
    methods = unittest.TestLoader().getTestCaseNames(FakeTest)
    return [Case("FakeTest", "generic", m, FakeTest) for m in methods], ["NoSuchTest: left out"]
