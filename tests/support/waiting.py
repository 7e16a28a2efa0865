"""How the tests let time pass: the only place where they sleep.

A test waits for an event, a pipe, a condition variable or a barrier where it can. These are for where
it cannot. Needs nothing of torch.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    what: str | Callable[[], str],
    timeout: float = 20.0,
    interval: float = 0.01,
) -> T:
    """Waits until `condition`, which gives no event, is true, and returns its value.

    For what another process or a library does out of sight. The failure says what was waited for.
    """
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what() if callable(what) else what}")
        time.sleep(interval)
    return value


def wait_for(read: Callable[[], T], expected: T, what: str, timeout: float = 20.0) -> None:
    """Waits until `read()` gives what is expected; the failure says what it gave last."""
    seen = None

    def arrived() -> bool:
        nonlocal seen
        seen = read()
        return seen == expected

    wait_until(arrived, lambda: f"{what} is {expected!r}; it was {seen!r}", timeout)


def takes(seconds: float) -> None:
    """Time that is part of the test itself: a slow stage, a late rank, the moment of a fault."""
    time.sleep(seconds)


def time_for_what_must_not_happen(seconds: float) -> None:
    """Time in which what is forbidden would happen; that it did not is checked after it."""
    takes(seconds)


def takes_with_the_gil(seconds: float) -> None:
    """As `takes`, with the interpreter held: a call into C that does not give it back."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))
