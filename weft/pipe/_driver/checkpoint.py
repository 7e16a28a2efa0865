"""A checkpoint of a pipeline while it is written: a folder with a shard of each worker."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from weft.pipe._driver.remote_parts import RemoteParts
from weft.pipe._workers import state


class Checkpoint:
    """What ``pipe.save_checkpoint(path, background=True)`` gives. Any thread.

    Args:
        path: the folder that takes the place of the former one when all workers have written.
        pipe: the pipeline's name.
        parts: the workers, each of which writes.
        snapshot: whether they write the state that :func:`state.take_snapshot` copied.
    """

    def __init__(self, path: Path, pipe: str, parts: RemoteParts, snapshot: bool) -> None:
        self._path = path
        self._unfinished = path.with_name(f"{path.name}.{pipe}.unfinished")
        self._before = path.with_name(f"{path.name}.{pipe}.before")
        self._error: BaseException | None = None
        self._told = False
        self._unfinished.mkdir(parents=True)
        parts.wait_for_given_up()
        self._parts = parts  # the stages stay until they are written
        self._shards = {
            worker: parts.begin(worker, state.write_shard, str(self._unfinished), number, snapshot)
            for number, worker in enumerate(parts.workers)
        }
        self._thread = threading.Thread(target=self._finish, name="weft-checkpoint")
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
            if self._path.exists():
                self._path.rename(self._before)
            self._unfinished.rename(self._path)
            shutil.rmtree(self._before, ignore_errors=True)
        except BaseException as error:
            self._error = error
        finally:
            shutil.rmtree(self._unfinished, ignore_errors=True)

    def _wait_for_shards(self) -> None:
        """Waits for all, so that none is written when the folder is removed; raises the first failure."""
        failures: list[tuple[str, Exception]] = []
        for worker, shard in self._shards.items():
            try:
                shard.wait()
            except Exception as error:
                failures.append((worker, error))
        for worker, error in failures:
            raise RuntimeError(
                f"worker '{worker}' could not write its shard of the checkpoint {self._path}: {error}"
            ) from error
