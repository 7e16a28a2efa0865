"""Work that Ctrl-C does not cut in two."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

from weft import _C
from weft.pipe._workers.runner import Runner

T = TypeVar("T")


class Uninterrupted:
    """Does pieces of work one after the other, each as a whole, in a thread of its own.

    Ctrl-C ends the caller's wait for a piece, and leaves the piece: the next one begins after its end.
    The pieces come from one thread at a time.
    """

    def __init__(self) -> None:
        self._runner = Runner("weft-driver")
        self._left: _Piece | None = None
        weakref.finalize(self, self._runner.close).atexit = False

    def do(self, work: Callable[[], T]) -> T:
        """Returns what the work gives, or raises what it raises.

        Work that is begun inside of other work is a part of that.

        Raises:
            RuntimeError: the work that was left has failed; this work is not begun.
        """
        if self._runner.is_here():
            return work()
        self.wait()
        piece = self._left = _Piece(work)
        self._finish(piece)
        try:
            return piece.outcome.result()
        finally:
            del piece  # an error leads to this frame

    def wait(self) -> None:
        """Waits for the end of the work that was left, and raises RuntimeError if it has failed."""
        if self._left is None or self._runner.is_here():
            return
        piece = self._left
        self._finish(piece)
        try:
            piece.outcome.result()
        except Exception as error:
            raise RuntimeError(
                f"a call of this Pipe that was interrupted has failed: {error}"
            ) from error
        finally:
            del piece

    def _finish(self, piece: _Piece) -> None:
        self._runner.run(piece.run)  # again where Ctrl-C came amid the first time: it runs once
        # Looks again and again: another thread may get the signal, which wakes nobody.
        while not piece.outcome.done():
            futures.wait([piece.outcome], 0.05)
        self._left = None


class _Piece:
    """Work that runs once, with the caller's deadline, and what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.outcome: futures.Future[Any] = futures.Future()
        self._work: Callable[[None], Any] | None = _C._with_deadline_of_this_call(lambda _: work())

    def run(self) -> None:
        work, self._work = self._work, None  # which may lead to the Pipe
        if work is None:
            return
        try:
            self.outcome.set_result(work(None))
        except BaseException as error:
            self.outcome.set_exception(error)
            del self  # the error leads to this frame
