"""What a fault is: a class that begins, ends and says itself in one line.

A fault is drawn from a seed, acts on one process (the victim) or on the network between them, and
says what it may cost (`Cost`). All of them work on real processes from outside, without rights.
"""

from __future__ import annotations

import enum
import random
from typing import Any

from paths import Path
from waiting import takes


class Cost(enum.Enum):
    NOTHING = "every operation is right"
    PEER = "operations with the victim may fail and name it; the others are right"
    RESOURCES = "operations may fail and name the peer; afterwards they are right again"


class Fault:
    """`begin` and `end` frame it; `hold` is the time between them."""

    cost = Cost.NOTHING
    proxied = False  # needs the network between the processes
    of_all = False  # every worker loses every other: nobody is left to go on
    lasts = (0.2, 0.8)

    def __init__(self, rng: random.Random) -> None:
        self.seconds = rng.uniform(*self.lasts)
        self.found: list[str] = []  # what it saw that must not be

    @classmethod
    def fits(cls, path: Path) -> bool:
        """Whether it can happen there; clocks of their own are for those that need them."""
        return path.proxied >= cls.proxied and not path.clocks

    def begin(self, fleet: Any) -> None:
        raise NotImplementedError

    def hold(self) -> None:
        takes(self.seconds)

    def end(self, fleet: Any) -> None:
        pass

    def details(self) -> str:
        return f"{self.seconds:.2f} s"

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.details()})"
