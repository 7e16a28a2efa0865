"""What Weft aims at, in the machine's own terms: multiples of a limit that the same run measured.

A figure's time may be so many times its limit's; a rate counts as the time of its bytes. ``figure`` and
``part`` are shell patterns; the first aim that fits a figure holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Aim:
    """At most ``most`` times the limit."""

    part: str
    figure: str
    most: float
    limit: str  # in words


TRIP = "raw round trips"
COPY = "memcpys"
AIMS = (
    # Weft's calls on one host. A p99 is beside its own p50.
    Aim("rpc", "* p99 us", 2, "its p50"),
    Aim("rpc", "rpc_sync add p50 us", 3.5, TRIP),
    Aim("rpc", "python function p50 us", 5, TRIP),
    Aim("rpc", "scripted * p50 us", 4, TRIP),
    Aim("rpc", "remote + to_here p50 us", 7, TRIP),
    Aim("rpc", "dist autograd p50 us", 20, TRIP),
    Aim("cpp", "* p50 us", 2, TRIP),
    Aim("cpp", "* p99 us", 2, "its p50"),
    # Large tensors.
    Aim("rpc", "send * MiB gb_s", 1.3, COPY),
    Aim("rpc", "ResNet-18 state ms", 1.3, COPY),
    Aim("rpc", "ResNet-18 state, kept ms", 1.3, COPY),
    Aim("tcp", "send * MiB gb_s", 1.15, "raw TCP"),
    Aim("tcp", "ResNet-18 state ms", 1.15, "raw TCP"),
    Aim("tcp", "ResNet-18 state, kept ms", 1.15, "raw TCP"),
    # The process group.
    Aim("collectives-*", "* 16 MiB us", 1.3, "its bytes by memcpy"),
    Aim("collectives-*", "* 128 MiB us", 1.3, "its bytes by memcpy"),
    Aim("ddp-*", "* step ms", 1.2, "the step alone"),
    # Pipelines: 90% of the ideal speed-up; us beside the same work by hand; the peer's time.
    Aim("pipe", "overlap, *", 1 / 0.9, "the ideal"),
    Aim("pipe", "a task, Python stage, forward us", 1, "10 us"),
    Aim("pipe", "a task, Python stage, with backward us", 1, "25 us"),
    Aim("pipe", "a task, Python stage, with checkpointing us", 1, "50 us"),
    Aim("pipe", "mini-batch, *", 1, "torch.distributed.pipelining"),
)


def aim_of(part: str, figure: str) -> Aim | None:
    """The aim of a figure of a part of the table, if it has one."""
    fits = (a for a in AIMS if fnmatchcase(part, a.part) and fnmatchcase(figure, a.figure))
    return next(fits, None)
