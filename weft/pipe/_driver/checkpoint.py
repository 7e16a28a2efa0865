"""A checkpoint of a pipeline while it is written: a folder with a shard of each worker."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import threading
from pathlib import Path
from typing import Any

from weft.pipe._driver.remote_parts import RemoteParts
from weft.pipe._workers import shards


def folder_at(path: str | Path) -> Path:
    """Where a checkpoint goes: where a link leads, so that it leads to the new one.

    It is absolute, because the workers have current folders of their own.

    Raises:
        NotADirectoryError: a file is there, which is not Weft's to remove.
    """
    folder = Path(os.path.realpath(path) if os.path.islink(path) else os.path.abspath(path))
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(
            f"save_checkpoint: {path} is no folder: give another path, or remove what is there"
        )
    return folder


def take_back(path: str | Path) -> None:
    """Puts back what a save had put aside when its driver was killed, if nothing is at the path."""
    folder = Path(os.path.realpath(path))
    if not folder.exists():
        aside = list(folder.parent.glob(f"{glob.escape(folder.name)}.*.before"))
        if len(aside) == 1:
            aside[0].rename(folder)


class Checkpoint:
    """What ``pipe.save_checkpoint(path, background=True)`` gives. Any thread.

    Args:
        path: the folder that takes the place of the former one when all workers have written.
        pipe: the pipeline's name.
        parts: the workers, each of which writes.
        snapshot: whether they write the state that :func:`shards.take_snapshot` copied.
    """

    def __init__(self, path: Path, pipe: str, parts: RemoteParts, snapshot: bool) -> None:
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.{pipe}.unfinished")
        self._before = path.with_name(f"{path.name}.{pipe}.before")
        self._error: BaseException | None = None
        self._told = False
        self._parts = parts  # the stages stay until they are written
        self._shards: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._finish, name="weft-checkpoint")
        shutil.rmtree(self._unfinished, ignore_errors=True)  # what a former save could not remove
        self._unfinished.mkdir(parents=True)
        try:
            self._begin(snapshot)
        except BaseException:
            with contextlib.suppress(RuntimeError):
                self._wait_for_shards()
            shutil.rmtree(self._unfinished, ignore_errors=True)
            raise

    def _begin(self, snapshot: bool) -> None:
        folder = str(self._unfinished)
        for number, worker in enumerate(self._parts.workers):
            self._shards[worker] = self._parts.begin(
                worker, shards.write_shard, folder, number, snapshot
            )
        self._thread.start()

    def done(self) -> bool:
        """Whether it has been written, or has failed."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Until the checkpoint is in its place.

        Raises:
            RuntimeError: a worker could not write, or was lost; what was there before stays.
        """
        self._join()
        if self._error is not None:
            self._told = True
            raise self._error

    def settle(self) -> None:
        """As :meth:`wait`, and raises nothing that :meth:`wait` has raised before."""
        self._join()
        if not self._told:
            self.wait()

    def _join(self) -> None:
        while self._thread.is_alive():
            self._thread.join(0.05)  # Ctrl-C is heard

    def _finish(self) -> None:
        try:
            self._wait_for_shards()
            self._replace()
        except BaseException as error:
            self._error = error
        finally:
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def _replace(self) -> None:
        """Puts the folder in the place of the former one, which stays where that fails."""
        try:
            former = self._path.exists()
            if former:
                shutil.rmtree(self._before, ignore_errors=True)  # what a former save left
                self._path.rename(self._before)
            try:
                self._unfinished.rename(self._path)
            except OSError:
                if former:
                    self._before.rename(self._path)
                raise
        except OSError as error:
            raise RuntimeError(
                f"the checkpoint could not be put at {self._path}: {error}"
            ) from error
        shutil.rmtree(self._before, ignore_errors=True)

    def _wait_for_shards(self) -> None:
        """Waits for all, so that none is written when the folder is removed; raises the first failure."""
        failures: list[tuple[str, Exception]] = []
        for worker, shard in self._shards.items():
            try:
                shard.wait()
            except Exception as error:
                failures.append((worker, error))
        for worker, failure in failures:
            raise RuntimeError(
                f"worker '{worker}' could not write its shard of the checkpoint {self._path}: {failure}"
            ) from failure
