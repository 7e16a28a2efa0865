"""The RRefs that a thread forks for the messages that it pickles."""

from __future__ import annotations

import threading
from typing import Any

from weft import _C


class MessageForks(threading.local):
    """Entered while a message is pickled, also inside of another one. Each thread has its own.

    The forks of a message whose pickling fails are forgotten: the RRefs' owners would wait for them.
    """

    def __init__(self) -> None:
        self._open: list[list[tuple[Any, ...]]] = []  # of each message that is being pickled
        self._last: list[tuple[Any, ...]] = []

    def __enter__(self) -> None:
        self._open.append([])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        made = self._open.pop()
        if kind is None:
            self._last = made
        else:
            _C._forget_forks(made)

    def add(self, fork: tuple[Any, ...]) -> None:
        """Notes a fork, if a message is being pickled."""
        if self._open:
            self._open[-1].append(fork)

    def forget_last_message(self) -> None:
        """Forgets the forks of the message that this thread pickled last, and does not send."""
        _C._forget_forks(self._last)
        self._last = []


forks = MessageForks()
