"""Faults of the network between the processes, by proxy.py."""

from __future__ import annotations

import random
from typing import Any

from members import SILENCE
from waiting import takes

from faults.fault import Cost, Fault


class Reset(Fault):
    """RST on every connection, once or a few times."""

    proxied = True

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.gaps = [rng.uniform(0, 0.2) for _ in range(rng.randint(1, 4))]

    def begin(self, fleet: Any) -> None:
        for gap in self.gaps:
            fleet.network.reset()
            takes(gap)

    def details(self) -> str:
        return f"{len(self.gaps)} times"


class BlackHole(Fault):
    """Nothing passes for a while, and then everything does."""

    proxied = True

    def begin(self, fleet: Any) -> None:
        fleet.network.change(held=True)

    def end(self, fleet: Any) -> None:
        fleet.network.change(held=False)


class LongBlackHole(BlackHole):
    """Nothing passes for longer than peer_timeout: every worker is lost to every other."""

    cost = Cost.PEER
    of_all = True
    lasts = (SILENCE + 0.8, SILENCE + 1.5)


class _Line(Fault):
    """A property of the network between the workers, for a while."""

    proxied = True
    what = ""  # of Network.change
    choices: tuple[float, ...] = ()

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.value = rng.choice(self.choices)

    def begin(self, fleet: Any) -> None:
        fleet.network.change(**{self.what: self.value})

    def end(self, fleet: Any) -> None:
        fleet.network.change(**{self.what: 0})


class Delay(_Line):
    """Everything arrives later."""

    what = "delay"
    choices = (0.001, 0.01, 0.05, 0.2)

    def details(self) -> str:
        return f"{self.value * 1000:.0f} ms each way for {self.seconds:.2f} s"


class Throttle(_Line):
    """A slow line."""

    what = "rate"
    choices = (2 << 20, 8 << 20)

    def details(self) -> str:
        return f"{self.value >> 20} MiB/s for {self.seconds:.2f} s"


class Damage(_Line):
    """A bit flips now and then; the checksums find it, and the connection is made again."""

    what = "damage"
    choices = (0.0005, 0.005)

    def details(self) -> str:
        return f"a bit in {self.value:.2%} of the pieces for {self.seconds:.2f} s"
