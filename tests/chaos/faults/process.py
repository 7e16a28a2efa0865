"""Faults of one process: killed, stopped, or with a wall clock that jumps."""

from __future__ import annotations

import random
import signal
from typing import Any

from members import SILENCE
from paths import Path
from waiting import takes

from faults.fault import Cost, Fault

HOUR, YEAR = 3600, 366 * 86_400


class Kill(Fault):
    """kill -9."""

    cost = Cost.PEER
    lasts = (0.0, 0.0)

    def begin(self, fleet: Any) -> None:
        fleet.victim.kill()


class Stop(Fault):
    """SIGSTOP, and SIGCONT before anybody takes the victim for lost."""

    def begin(self, fleet: Any) -> None:
        fleet.victim.signal(signal.SIGSTOP)

    def end(self, fleet: Any) -> None:
        fleet.victim.signal(signal.SIGCONT)


class LongStop(Stop):
    """SIGSTOP for longer than peer_timeout."""

    cost = Cost.PEER
    lasts = (SILENCE + 0.8, SILENCE + 1.5)


class ClockJumps(Fault):
    """The wall clock of the victim, or those of all, jump a few times, and back in the end."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.everywhere = rng.random() < 0.5
        choices = (-YEAR, -HOUR, -1, 1, HOUR, YEAR)
        self.jumps = [rng.choice(choices) for _ in range(rng.randint(1, 4))]

    @classmethod
    def fits(cls, path: Path) -> bool:
        return path.clocks

    def _all_to(self, fleet: Any, seconds: int) -> None:
        for member in fleet.members if self.everywhere else [fleet.victim]:
            member.jump(seconds)

    def begin(self, fleet: Any) -> None:
        for seconds in self.jumps:
            self._all_to(fleet, seconds)
            takes(self.seconds / len(self.jumps))

    def hold(self) -> None:
        pass

    def end(self, fleet: Any) -> None:
        self._all_to(fleet, 0)

    def details(self) -> str:
        return f"{'all' if self.everywhere else 'the victim'}: {self.jumps} s, {self.seconds:.2f} s"
