"""All faults."""

from faults.fault import Cost, Fault
from faults.key_file import JOINS_IN_VAIN, BrokenKeyFile
from faults.limits import FewDescriptors, LittleMemory, NoThreads
from faults.network import BlackHole, Damage, Delay, LongBlackHole, Reset, Throttle
from faults.process import ClockJumps, Kill, LongStop, Stop

ALL: list[type[Fault]] = [
    Kill,
    BrokenKeyFile,
    Stop,
    LongStop,
    ClockJumps,
    Reset,
    BlackHole,
    LongBlackHole,
    Delay,
    Throttle,
    Damage,
    FewDescriptors,
    LittleMemory,
    NoThreads,
]
__all__ = ["ALL", "JOINS_IN_VAIN", "Cost", "Fault", *(fault.__name__ for fault in ALL)]
