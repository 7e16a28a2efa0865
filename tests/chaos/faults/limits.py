"""Limits of the system on the victim: descriptors, memory and threads."""

from __future__ import annotations

import os
import random
import resource
from typing import Any

from members import no_more_threads, threads_again

from faults.fault import Cost, Fault


class _Limit(Fault):
    """A limit of the system on the victim, below or near what it uses already."""

    cost = Cost.RESOURCES
    which = resource.RLIMIT_NOFILE

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.room = rng.choice((0, 0, 2, 5))

    def now(self, pid: int) -> int:
        raise NotImplementedError

    def begin(self, fleet: Any) -> None:
        pid = fleet.victim.pid
        self.before = resource.prlimit(pid, self.which)
        resource.prlimit(pid, self.which, (self.now(pid), self.before[1]))

    def end(self, fleet: Any) -> None:
        resource.prlimit(fleet.victim.pid, self.which, self.before)

    def details(self) -> str:
        return f"room for {self.room} more, {self.seconds:.2f} s"


class FewDescriptors(_Limit):
    """No descriptor can be opened, or only a few; the connections break meanwhile."""

    def now(self, pid: int) -> int:
        return max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1 + self.room

    def begin(self, fleet: Any) -> None:
        super().begin(fleet)
        if fleet.network is not None:
            fleet.network.reset()


class LittleMemory(_Limit):
    """The victim's address space cannot grow by more than a few MiB."""

    which = resource.RLIMIT_AS

    def now(self, pid: int) -> int:
        with open(f"/proc/{pid}/statm") as file:
            pages = int(file.read().split()[0])
        return pages * resource.getpagesize() + (self.room << 22)

    def details(self) -> str:
        return f"{self.room << 2} MiB more, {self.seconds:.2f} s"


class NoThreads(Fault):
    """No thread can be started."""

    cost = Cost.RESOURCES

    def begin(self, fleet: Any) -> None:
        fleet.victim.call(no_more_threads)

    def end(self, fleet: Any) -> None:
        fleet.victim.call(threads_again)
