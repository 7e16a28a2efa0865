"""A run: operations of one workload in threads of a worker, each with its outcome, recorded once.

`Run` calls the workload's function from several threads until it is told to stop. A callee counts
what it executes (ledger.py), so that the two sides can be compared.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ledger import SLOTS, Ledger, forget
from workloads import COUNTED, OPERATIONS, THREADS


@dataclass(frozen=True)
class Outcome:
    """One operation that did not end rightly, or not at all."""

    number: int
    status: str  # "error", "wrong", "unended"
    text: str
    started: float
    ended: float


@dataclass
class Report:
    """What became of all operations of a run."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    outcomes: list[Outcome] = field(default_factory=list)
    stacks: str = ""


class Run:
    """Operations of one kind, several at a time, in threads of this worker."""

    def __init__(self, kind: str, peers: list[str], ledger: str, threads: int, first: int) -> None:
        self.kind, self.peers, self.ledger = kind, peers, ledger
        self.operation = OPERATIONS[kind]
        self.numbers = itertools.count(first)
        self.last = first + SLOTS // 2 - 1
        self.report = Report(kind)
        self.right: list[int] = []
        self.open: dict[int, float] = {}
        self.kept: list[Any] = []  # what operations leave for the next, with a close()
        self.stopping = threading.Event()
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self._lane, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def _lane(self) -> None:
        while not self.stopping.is_set() and (number := next(self.numbers)) < self.last:
            started = time.monotonic()
            self.open[number] = started
            try:
                why = self.operation(self, number)
                status, text = ("wrong", why) if why else ("right", "")
            except Exception as error:
                status, text = "error", f"{type(error).__name__}: {error}"
            with self.changed:
                del self.open[number]
                self.report.counts[status] += 1
                if status == "right":
                    self.right.append(number)
                else:
                    outcome = Outcome(number, status, text, started, time.monotonic())
                    self.report.outcomes.append(outcome)
                self.changed.notify_all()
            if status == "error":
                self.stopping.wait(0.01)  # a dead peer gives thousands of them a second

    def progress(self, more: int, bound: float) -> bool:
        """Waits until so many more operations have ended rightly."""
        with self.changed:
            wanted = self.report.counts["right"] + more
            return self.changed.wait_for(lambda: self.report.counts["right"] >= wanted, bound)

    def stop(self, bound: float) -> Report:
        """Ends it; what has not ended within the bound is in the report, with all stacks."""
        self.stopping.set()
        end = time.monotonic() + bound
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
        if not self.open:
            while self.kept:
                self.kept.pop().close()
        report, now = self.report, time.monotonic()
        for number, started in list(self.open.items()):
            report.counts["unended"] += 1
            report.outcomes.append(Outcome(number, "unended", self.kind, started, now))
        if self.open:
            report.stacks = stacks()
        if self.kind in COUNTED:
            self._compare(report, now)
        return report

    def _compare(self, report: Report, now: float) -> None:
        """What the callee has executed, against what the caller saw."""
        ledger = Ledger(self.ledger)
        for number in self.right:
            if (times := ledger.executed(number)) != 1:
                text = f"it was answered, and executed {times} times"
                report.outcomes.append(Outcome(number, "wrong", text, now, now))
        for outcome in list(report.outcomes):
            if (times := ledger.executed(outcome.number)) > 1:
                text = f"it failed, and was executed {times} times"
                report.outcomes.append(Outcome(outcome.number, "wrong", text, now, now))


def stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


_runs: list[Run] = []


def begin(kind: str, peers: list[str], ledger: str, first: int = 0) -> None:
    _runs.append(Run(kind, peers, ledger, THREADS.get(kind, 6), first))


def progress(more: int, bound: float = 20.0) -> bool:
    return _runs[-1].progress(more, bound)


def stop(bound: float) -> Report:
    report = _runs.pop().stop(bound)
    forget()
    return report
