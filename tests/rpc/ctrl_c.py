"""How soon Ctrl-C ends a wait: within 100 ms, and what the machine itself takes at that moment."""

from __future__ import annotations

import random
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

from waiting import wait_until
from workers import Worker, ended_by

AT_ONCE = 0.1  # a wait looks for signals every 50 ms
TRIES = 5


def sleep() -> tuple[str, float]:
    """Python's own wait, which a signal ends at once: what it takes is the machine's."""
    return ended_by(lambda: time.sleep(60), "sleep")


def delay(worker: Worker, wait: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    """Sends SIGINT into the wait that the worker begins; the time until it has ended."""
    begun = worker.output().count("waits in")
    worker.start(wait, *arguments, **options)
    wait_until(
        lambda: worker.output().count("waits in") > begun, lambda: f"it waits\n{worker.output()}"
    )
    # Any moment between two looks.
    assert not worker.has_answered_within(random.uniform(0.2, 0.25)), worker.result()
    sent = time.monotonic()
    worker.signal(signal.SIGINT)
    how, ended = worker.result(timeout=20)
    assert how == "KeyboardInterrupt"
    return ended - sent


class Delays:
    """Of several tries of one wait, and of a sleep in the same process beside each."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.sleeps: list[float] = []

    def add(
        self, worker: Worker, wait: Callable[..., Any], *arguments: Any, **options: Any
    ) -> None:
        self.sleeps.append(delay(worker, sleep))
        self.waits.append(delay(worker, wait, *arguments, **options))

    def check(self) -> None:
        """The median of each: no single try says anything on a busy machine."""
        bound = AT_ONCE + statistics.median(self.sleeps)
        assert statistics.median(self.waits) <= bound, (self.waits, self.sleeps)
