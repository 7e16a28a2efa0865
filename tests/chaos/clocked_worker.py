"""A worker process with a wall clock of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import wall_clock
from workers import Worker


@contextlib.contextmanager
def _in_environment(more: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class ClockedWorker(Worker):
    """A program of its own, since a library is preloaded at a program's start: it takes seconds."""

    processes = multiprocessing.get_context("spawn")

    def __init__(self, label: str, folder: Path, own: Mapping[str, str | None]) -> None:
        self.folder = folder
        with _in_environment(wall_clock.environment(folder, label)):
            super().__init__(label, folder, own)

    def jump(self, to: int) -> None:
        wall_clock.jump(self.folder, self.label, to)
