"""Progress of a run: a bar on a terminal, a line for each epoch elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from typing_extensions import Self


class Progress:
    """Counts steps and epochs; prints nothing unless it is shown."""

    def __init__(self, epochs: int, steps: int, shown: bool = True) -> None:
        self._epochs = epochs
        self._shown = shown
        self._losses: list[float] = []
        self._accuracy = "?"
        self._began = time.monotonic()
        self._bar = None
        if shown and sys.stderr.isatty():
            from tqdm import tqdm

            size = shutil.get_terminal_size()  # never 0, unlike what some terminals say
            shape = {"ncols": min(100, size.columns), "nrows": size.lines}
            self._bar = tqdm(total=epochs * steps, desc="training", unit="step", **shape)

    def step(self, loss: float) -> None:
        """A step has been taken."""
        self._losses.append(loss)
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.3f}", accuracy=self._accuracy, refresh=False)
            self._bar.update()

    def epoch(self, number: int, accuracy: float) -> None:
        """An epoch has ended with this test accuracy."""
        loss = sum(self._losses) / len(self._losses)
        self._losses.clear()
        self._accuracy = f"{accuracy:.2%}"
        if self._bar is not None:
            self._bar.set_postfix(loss=f"{loss:.3f}", accuracy=self._accuracy)
        elif self._shown:
            spent = time.monotonic() - self._began
            line = f"epoch {number + 1:3d}/{self._epochs}  loss {loss:6.3f}"
            print(f"{line}  test accuracy {accuracy:7.2%}  {spent:5.1f} s", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()
