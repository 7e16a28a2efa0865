"""Calls functions of torch that wait in C++ and ignore Ctrl-C, so that Ctrl-C ends the wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def interruptible(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs the function on a thread of its own; returns or raises what it does.

    The handlers of signals run on the main thread, which waits in Python here. What a handler raises
    ends the wait and leaves the function behind. Called off the main thread, this calls the function
    there.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*args, **kwargs)
    results: list[Any] = []
    errors: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            results.append(function(*args, **kwargs))
        except BaseException as error:
            errors.append(error)
        ended.set()

    threading.Thread(target=run, name="weft-wait", daemon=True).start()
    ended.wait()
    if errors:
        raise errors.pop()
    return results.pop()
