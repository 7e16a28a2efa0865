"""Several lanes of tests at a time, each test with a deadline; a flaky one is tried again."""

from __future__ import annotations

import select
import shutil
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from conformance import processes
from conformance.cases import FAILED, Case, Verdict

OnVerdict = Callable[[Case, Verdict, int], None]


def run(
    cases: Iterable[Case],
    lanes: int,
    timeout: float,
    attempts: Callable[[Case], int],
    on_verdict: OnVerdict,
    on_retry: OnVerdict,
) -> None:
    """Runs all cases; `on_verdict` hears the last attempt of each, `on_retry` the failed ones before."""
    waiting = deque((case, 1) for case in cases)
    running: dict[int, processes.Running] = {}
    scratch = Path(tempfile.mkdtemp(prefix="conf-"))
    poll = select.poll()
    # A signal may stop the run only while it waits for a test to end, when every test that was
    # started is on the books and none is half collected; so none outlives the run.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, processes.STOP_SIGNALS)
    try:
        while waiting or running:
            while waiting and len(running) < lanes:
                case, attempt = waiting.popleft()
                test = processes.start(case, attempt, timeout, scratch)
                running[test.pidfd] = test
                poll.register(test.pidfd, select.POLLIN)
            for test, verdict in _ended(poll, running):
                if verdict.status == FAILED and test.attempt < attempts(test.case):
                    on_retry(test.case, verdict, test.attempt)
                    waiting.append((test.case, test.attempt + 1))
                else:
                    on_verdict(test.case, verdict, test.attempt)
    finally:
        for test in running.values():
            test.kill()
        shutil.rmtree(scratch, ignore_errors=True)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ended(
    poll: select.poll, running: dict[int, processes.Running]
) -> list[tuple[processes.Running, Verdict]]:
    """Waits until a test ends or a deadline passes, and takes those tests out of `running`."""
    nearest = min(test.deadline for test in running.values())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, processes.STOP_SIGNALS)
    try:
        ready = {fd for fd, _ in poll.poll(max(0.0, nearest - time.monotonic()) * 1000)}
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, processes.STOP_SIGNALS)
    now = time.monotonic()
    done = []
    for fd, test in list(running.items()):
        if fd in ready or now >= test.deadline:
            poll.unregister(fd)
            del running[fd]
            done.append((test, test.finish() if fd in ready else test.kill()))
    return done
