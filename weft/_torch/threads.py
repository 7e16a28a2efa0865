"""Threads that help a process, which must not keep it from working."""

from __future__ import annotations

import threading

from weft._torch.log import warn


def started(thread: threading.Thread, without: str) -> bool:
    """Starts it; False, and a warning, where the system gives no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        warn(f"{without}: {error}")
        return False
    return True
