"""What was executed, in memory that outlives a kill: one byte for each operation, counted at the callee."""

from __future__ import annotations

import mmap
import threading
from functools import cache
from pathlib import Path

SLOTS = 1 << 20  # operations of one case


class Ledger:
    """Each operation's number of executions. The callees of one case are one process at a time."""

    def __init__(self, path: str, create: bool = False) -> None:
        if create:
            with Path(path).open("wb") as made:
                made.truncate(SLOTS)
        with Path(path).open("r+b") as opened:
            self._counts = mmap.mmap(opened.fileno(), SLOTS)
        self._lock = threading.Lock()

    def add(self, operation: int) -> None:
        with self._lock:
            self._counts[operation] = min(255, self._counts[operation] + 1)

    def executed(self, operation: int) -> int:
        return self._counts[operation]


@cache
def _opened(path: str) -> Ledger:
    return Ledger(path)


def executed(path: str, operation: int) -> None:
    """A callee says that it executes this operation."""
    _opened(path).add(operation)


def forget() -> None:
    """Lets go of the ledgers of earlier cases."""
    _opened.cache_clear()
