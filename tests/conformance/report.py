"""What the runner says: a line per failure as it happens, progress, a table, and the last line."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

from conformance.cases import FAILED, PASSED, SKIPPED, Case, Verdict

_PROGRESS_SECONDS = 15.0
_TAIL_LINES = 40
_HUNG_TAIL_LINES = 120


class Report:
    """Collects verdicts and prints them."""

    def __init__(self, total: int, logs: Path | None = None) -> None:
        self.total = total
        self.logs = logs
        self.verdicts: list[tuple[Case, Verdict]] = []
        self.retried: list[str] = []
        self.missing: list[str] = []
        self._counts: Counter[str] = Counter()
        self._started = self._told = time.monotonic()
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)

    def add(self, case: Case, verdict: Verdict, attempt: int) -> None:
        """Takes the final verdict on a test."""
        self.verdicts.append((case, verdict))
        self._counts[verdict.status] += 1
        if verdict.status == FAILED:
            self._say(f"FAIL  {case.name} ({verdict.seconds:.1f} s): {verdict.headline}")
            self._keep(case, verdict)
        elif attempt > 1:
            self.retried.append(f"{case.name}: {verdict.status} on attempt {attempt}")
        self._progress()

    def retry(self, case: Case, verdict: Verdict, attempt: int) -> None:
        """Takes a failed attempt of a known-flaky test that will run again."""
        self._say(f"RETRY {case.name} (attempt {attempt} failed): {verdict.headline}")

    def finish(self) -> int:
        """Prints the details and the tables; returns the process's exit code."""
        self._clear()
        self._print_failures()
        for case, verdict in self.verdicts:
            if verdict.status == SKIPPED:
                print(f"SKIP  {case.name}: {verdict.headline}")
        for line in self.retried:
            print(f"FLAKY {line}")
        for line in self.missing:
            print(f"MISSING {line}")
        self._print_table()
        print(", ".join(f"{self._counts[status]} {status}" for status in (PASSED, FAILED, SKIPPED)))
        return 1 if self._counts[FAILED] else 0

    def write_json(self, path: Path) -> None:
        """Writes the counts, the failures and every test's time."""
        failures = [
            {"name": case.name, "reason": verdict.headline, "seconds": round(verdict.seconds, 2)}
            for case, verdict in self.verdicts
            if verdict.status == FAILED
        ]
        content = {status: self._counts[status] for status in (PASSED, FAILED, SKIPPED)}
        content |= {"failures": failures, "retried": self.retried, "missing": self.missing}
        content["seconds"] = round(time.monotonic() - self._started, 2)
        content["tests"] = {c.name: [v.status, round(v.seconds, 2)] for c, v in self.verdicts}
        path.write_text(json.dumps(content, indent=1) + "\n")

    def _print_failures(self) -> None:
        for case, verdict in self.verdicts:
            if verdict.status != FAILED:
                continue
            print(f"\n==== {case.name}: {verdict.headline}")
            hung = verdict.detail.startswith("TimeoutError: hung")
            text = verdict.output if hung else verdict.detail or verdict.output
            lines = text.splitlines()[-(_HUNG_TAIL_LINES if hung else _TAIL_LINES) :]
            print("\n".join(f"    {line}" for line in lines))

    def _print_table(self) -> None:
        rows: dict[str, Counter[str]] = {}
        for case, verdict in self.verdicts:
            row = rows.setdefault(case.suite, Counter())
            row[verdict.status] += 1
            row["ms"] += int(verdict.seconds * 1000)
        width = max(map(len, rows), default=5)
        print(f"\n{'suite':<{width}}  passed  failed  skipped  test seconds")
        for suite, row in rows.items():
            counts = f"{row[PASSED]:6}  {row[FAILED]:6}  {row[SKIPPED]:7}"
            print(f"{suite:<{width}}  {counts}  {row['ms'] / 1000:12.1f}")
        print(f"{time.monotonic() - self._started:.0f} s in all")

    def _keep(self, case: Case, verdict: Verdict) -> None:
        if self.logs is not None:
            text = f"{verdict.detail}\n---- output ----\n{verdict.output}"
            (self.logs / f"{case.name}.txt").write_text(text)

    def _progress(self) -> None:
        now = time.monotonic()
        if sys.stdout.isatty():
            print(f"\r\033[K{self._state()}", end="", flush=True)
        elif now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            print(self._state(), flush=True)

    def _state(self) -> str:
        counts = ", ".join(f"{self._counts[s]} {s}" for s in (PASSED, FAILED, SKIPPED))
        seconds = time.monotonic() - self._started
        return f"[{len(self.verdicts):3}/{self.total}] {counts}; {seconds:.0f} s"

    def _say(self, line: str) -> None:
        self._clear()
        print(line, flush=True)

    @staticmethod
    def _clear() -> None:
        if sys.stdout.isatty():
            print("\r\033[K", end="")
