"""Rounds of several sides in turn, each beside the machine's limits of the same round."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from bench import limits, steal
from bench.report import Figures
from bench.rpc import namespaces
from bench.rpc.pair import Pair


@dataclass
class Turns:
    """What was seen, by round."""

    figures: dict[str, list[Figures]]  # by side
    metric: dict[str, str] = field(default_factory=dict)  # that gave a figure
    limits: list[Figures] = field(default_factory=list)
    steal: list[float] = field(default_factory=list)


def measure(
    sides: tuple[str, ...],
    metrics: list[str],
    rounds: int,
    cores: tuple[int, int] | None = None,
    hosts: namespaces.TwoHosts | None = None,
    with_limits: bool = True,
) -> Turns:
    """So many rounds of ``metrics``; with ``cores`` each process stays on one of them."""
    found = Turns({side: [] for side in sides})
    pairs: dict[str, Pair] = {}

    def one(number: int) -> tuple[dict[str, Figures], Figures]:
        figures: dict[str, Figures] = {side: {} for side in sides}
        for name in metrics:
            # Who goes first changes, so that none always finds warm caches.
            for side in sides if number % 2 == 0 else sides[::-1]:
                measured = pairs[side].measure(name)
                figures[side].update(measured)
                found.metric.update(dict.fromkeys(measured, name))
        return figures, limits.measure(cores, hosts) if with_limits else {}

    try:
        for side in sides:
            pairs[side] = Pair(side, hosts, cores)
        for number in range(rounds):
            (figures, bounds), lost = steal.quiet_round(lambda number=number: one(number))
            for side in sides:
                found.figures[side].append(figures[side])
            found.limits.append(bounds)
            found.steal.append(lost)
            print(f"round {number + 1} of {rounds}, steal {lost:.1%}", file=sys.stderr)
    finally:
        for pair in pairs.values():
            pair.close()
    return found


def limit(name: str, figures: Figures, over_tcp: bool = False) -> float | None:
    """The limit of a figure, in its unit; None where there is none."""
    copied = limits.tcp if over_tcp else limits.memcpy
    if name.endswith(" p99 us"):
        return figures[name.replace(" p99 us", " p50 us")]
    if name.endswith(" p50 us"):
        return figures[limits.ROUND_TRIP]
    if name.endswith(" per_s"):
        return figures[limits.IN_FLIGHT]
    if name.startswith("ResNet-18 state"):
        return figures[copied("state")] / 1e3
    if name == "200 x 4 KiB ms":
        return figures[copied("200 x 4 KiB")] / 1e3
    for label, size in limits.SIZES.items():
        if name.startswith(f"send {label}") and name.endswith(" gb_s"):
            return size / figures[copied(label)] / 1e3
    return None
