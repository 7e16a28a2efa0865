"""A gate at each worker, for calls that take exactly as long as their test wants. What workers run."""

from __future__ import annotations

import threading

GATE, BEGUN = threading.Event(), threading.Event()


def wait_for_gate() -> str:
    """Answers once the gate is open."""
    BEGUN.set()
    assert GATE.wait(30)
    return "late"


def wait_until_begun() -> None:
    """Until a call waits at the gate, or has."""
    assert BEGUN.wait(30)


def open_gate() -> None:
    GATE.set()


def close_gate() -> None:
    GATE.clear()
    BEGUN.clear()
