"""What goes wrong: each fault is a class that begins, ends and says itself in one line.

A fault is drawn from a seed, acts on one worker of a fleet (the victim) or on its network, and says
what it may cost (`Cost`). All of them work on real processes from outside, without rights.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import random
import resource
import signal
from typing import Any

from members import SILENCE, no_more_threads, threads_again
from waiting import takes

JOINS_IN_VAIN = 5.0  # seconds in which a worker that cannot join must say why


class Cost(enum.Enum):
    NOTHING = "every operation is right"
    PEER = "operations with the victim may fail and name it; the others are right"
    RESOURCES = "operations may fail and name the peer; afterwards they are right again"


class Fault:
    """`begin` and `end` frame it; `hold` is the time between them."""

    cost = Cost.NOTHING
    proxied = False  # needs the network between the workers
    of_all = False  # every worker loses every other: nobody is left to go on
    of_ranks = True  # makes sense for a process group, too
    lasts = (0.2, 0.8)

    def __init__(self, rng: random.Random) -> None:
        self.seconds = rng.uniform(*self.lasts)
        self.found: list[str] = []  # what it saw that must not be

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


class Kill(Fault):
    """kill -9."""

    cost = Cost.PEER
    lasts = (0.0, 0.0)

    def begin(self, fleet: Any) -> None:
        fleet.victim.kill()


class ProxiedKill(Kill):
    """The same for workers that talk over TCP."""

    proxied = True


class BrokenKeyFile(Kill):
    """kill -9, and then the key file cannot be read: a successor must say so at once, with the file's
    name, while the others go on. The one after it finds the file as it was."""

    of_ranks = False

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


class ProxiedFewDescriptors(FewDescriptors):
    """The same over TCP: the connections are reset, so descriptors are wanted."""

    proxied = True


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


ALL = [
    Kill,
    ProxiedKill,
    BrokenKeyFile,
    Stop,
    LongStop,
    Reset,
    BlackHole,
    LongBlackHole,
    Delay,
    Throttle,
    Damage,
    FewDescriptors,
    ProxiedFewDescriptors,
    LittleMemory,
    NoThreads,
]
