"""One test in one forked process, with a process group, an output file and a temp folder of its own."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.cases import FAILED, Case, Verdict, execute

_OUTPUT_LIMIT = 256 * 1024  # how much of the end of a test's output is kept
_TRACE_SECONDS = 0.3  # what each process of a hung test has to write down where it is

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Execute = Callable[[Case], Verdict]


@dataclass
class Running:
    """A test under way in a child process, which leads the group of everything it starts."""

    case: Case
    attempt: int
    pid: int
    pidfd: int
    folder: Path
    started: float
    deadline: float

    def finish(self) -> Verdict:
        """Collects the verdict of a child that has ended."""
        _kill_group(self.pid)  # while the ended leader is unreaped its group id can't be another's
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        try:
            verdict = Verdict(**json.loads((self.folder / "verdict").read_text()))
        except (OSError, ValueError):
            verdict = Verdict(FAILED, f"RuntimeError: the test's own process ended with {code}")
        return self._close(verdict)

    def kill(self) -> Verdict:
        """Ends a test that is over its deadline; its output ends with where each process was."""
        for pid in _group_members(self.pid):
            with contextlib.suppress(ProcessLookupError), _pidfd(pid) as ended:
                os.kill(pid, signal.SIGUSR1)
                select.select([ended], [], [], _TRACE_SECONDS)
        _kill_group(self.pid)
        os.waitpid(self.pid, 0)
        limit = self.deadline - self.started
        return self._close(Verdict(FAILED, f"TimeoutError: hung: killed after {limit:.0f} s"))

    def _close(self, verdict: Verdict) -> Verdict:
        os.close(self.pidfd)
        seconds = time.monotonic() - self.started
        output = _tail(self.folder / "output")
        shutil.rmtree(self.folder, ignore_errors=True)
        return replace(verdict, seconds=seconds, output=output)


def start(
    case: Case, attempt: int, timeout: float, scratch: Path, run: Execute = execute
) -> Running:
    """Forks a child that runs `case`. Call it from a process with a single thread only."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _child(case, folder, run)
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, pid)  # the child does the same: whoever comes first
    now = time.monotonic()
    return Running(case, attempt, pid, os.pidfd_open(pid), folder, now, now + timeout)


def _child(case: Case, folder: Path, run: Execute) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
        verdict = run(case)
        (folder / "verdict").write_text(json.dumps(vars(verdict)))
        code = 0
    except BaseException as error:  # nothing may return into the runner's loop
        print(f"the test could not be run: {error!r}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    """A descriptor that is readable once the process has ended."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _kill_group(group: int) -> None:
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _group_members(group: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[2]) == group:
            members.append(int(entry.name))
    return sorted(members)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _OUTPUT_LIMIT))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
