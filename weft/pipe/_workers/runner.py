"""The thread of a worker's part of a pipeline, and of its driver."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Runner:
    """Calls functions one after the other in a thread of its own, until it is closed.

    One thread, because torch keeps what a first call makes, such as the threads of an operator, for each
    thread that calls. It starts with the first function, and does not hold up the end of the process.
    """

    def __init__(self, name: str = "weft-pipe") -> None:
        self._name = name
        self._functions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changing = threading.RLock()  # the collector may close one amid run()
        self._thread: threading.Thread | None = None
        self._closed = False

    def run(self, function: Callable[[], None]) -> None:
        """Has the thread call the function, which must not raise, after those before it."""
        with self._changing:
            if self._closed:
                raise RuntimeError("the Pipe was closed")
            self._functions.put(function)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def is_here(self) -> bool:
        """Whether the thread is the calling one."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """Lets the thread end after the functions that it has; does not wait."""
        with self._changing:
            self._closed = True
            self._functions.put(None)

    def _work(self) -> None:
        while (function := self._functions.get()) is not None:
            function()
            del function  # with what it holds
