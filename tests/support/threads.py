"""Work on several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable


def in_threads(*functions: Callable[[], object]) -> None:
    """Runs each on a thread of its own, all at once; once all have ended, raises the first failure."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread has not ended in a minute"
    if errors:
        raise errors[0]
