"""One test, and the verdict on it. Needs nothing of torch."""

from __future__ import annotations

import re
import unittest
from dataclasses import dataclass

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

# How a test's ranks start and end. A forked rank ends in `os._exit`: no atexit handler runs in it, no
# static destructor. One forked for a full exit runs both. A spawned one inherits nothing either.
FORK, FORK_FULL_EXIT, SPAWN = "fork", "fork, full exit", "spawn"

_ERROR_LINE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Skip)\w*: .*$", re.M)


@dataclass(frozen=True)
class Case:
    """A test method of a suite, ready to run."""

    suite: str
    group: str
    method: str
    cls: type[unittest.TestCase]
    ranks_start_by: str = FORK

    @property
    def name(self) -> str:
        return f"{self.suite}.{self.method}"


@dataclass(frozen=True)
class Verdict:
    """What became of a test: `detail` is the reason of a skip or the text of a failure."""

    status: str
    detail: str = ""
    seconds: float = 0.0
    output: str = ""

    @property
    def headline(self) -> str:
        """The detail in one line: the last line that looks like an exception, else the last line."""
        found = _ERROR_LINE.findall(self.detail)
        lines = found or [line for line in self.detail.splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else ""


def execute(case: Case) -> Verdict:
    """Runs the test in this process."""
    case.cls.ranks_start_by = case.ranks_start_by  # type: ignore[attr-defined]
    result = unittest.TestResult()
    unittest.TestSuite([case.cls(case.method)]).run(result)
    if problems := result.failures + result.errors:
        return Verdict(FAILED, "\n".join(text for _, text in problems))
    if result.unexpectedSuccesses:
        return Verdict(FAILED, "AssertionError: a test that is expected to fail has passed")
    if result.skipped:
        return Verdict(SKIPPED, result.skipped[0][1])
    return Verdict(PASSED)
