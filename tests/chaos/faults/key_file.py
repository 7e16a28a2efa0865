"""A key file that cannot be read when a successor of the victim wants to join."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
from typing import Any

from paths import Path

from faults.process import Kill

JOINS_IN_VAIN = 5.0  # seconds in which a process that cannot join must say why


class BrokenKeyFile(Kill):
    """kill -9, and then the key file cannot be read: a successor must say so at once, with the file's
    name, while the others go on. The one after it finds the file as it was."""

    @classmethod
    def fits(cls, path: Path) -> bool:
        return path.keyed and super().fits(path)

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.how = rng.choice(("gone", "fifo", "dead disk", "slow disk", "half written"))

    def begin(self, fleet: Any) -> None:
        super().begin(fleet)
        self.key, self.aside = fleet.key, f"{fleet.key}.aside"
        os.rename(self.key, self.aside)
        with contextlib.ExitStack() as broken:
            self._break(broken)
            error, took = fleet.try_to_join()
        if self.key not in error or took > JOINS_IN_VAIN:
            self.found.append(f"after {took:.1f} s a successor said {error!r} of {self.key}")

    def _break(self, broken: contextlib.ExitStack) -> None:
        if self.how == "fifo":
            os.mkfifo(self.key, 0o600)
        elif self.how == "dead disk":
            os.symlink("/proc/self/mem", self.key)  # a regular file, by its mode; EIO at 0
        elif self.how == "slow disk":
            # Who opens a file under a lease waits until it is given back, or for 45 s.
            signal.signal(signal.SIGIO, signal.SIG_IGN)  # the system's word that somebody waits
            os.link(self.aside, self.key)
            leased = broken.enter_context(open(self.key, "r+"))
            fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        elif self.how == "half written":
            with open(
                self.key, "w", opener=lambda path, flags: os.open(path, flags, 0o600)
            ) as file:
                file.write("a" * 20)

    def end(self, fleet: Any) -> None:
        os.replace(self.aside, self.key)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.aside)  # where the two were one file

    def details(self) -> str:
        return self.how
