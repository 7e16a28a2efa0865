"""C++ programs that are workers of pipelines, started and killed; and errors that are wanted."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator


class Group:
    """The C++ workers."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._running: dict[int, subprocess.Popen] = {}

    def start(self, rank: int) -> None:
        environment = {**os.environ, "RANK": str(rank)}
        command = [self._program, f"worker{rank}"]
        self._running[rank] = subprocess.Popen(command, env=environment)

    def kill(self, rank: int) -> None:
        worker = self._running.pop(rank)
        worker.kill()
        worker.wait()

    def signal(self, rank: int, number: int) -> None:
        self._running[rank].send_signal(number)

    def end(self) -> None:
        for rank in list(self._running):
            self.kill(rank)


@contextlib.contextmanager
def refused(kind: type[Exception], *texts: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        for text in texts:
            assert text in str(error), f"{text!r} is not in {error}"
    else:
        raise AssertionError(f"nothing was raised: {texts}")
