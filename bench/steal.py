"""Steal: time that the machine's host gave to somebody else while a round was measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

LIMIT = 0.05  # of the cores' time: what a round may lose before it is measured again
AGAIN = 2  # times that one round is measured again

Measured = TypeVar("Measured")


def counters(stat: str | None = None) -> tuple[int, int]:
    """Steal and all time of all cores since boot, in the kernel's ticks; 0, 0 where it does not say."""
    try:
        text = Path("/proc/stat").read_text() if stat is None else stat
    except OSError:
        return 0, 0
    # user nice system idle iowait irq softirq steal (guest times are in user and nice)
    ticks = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    return (ticks[7], sum(ticks)) if len(ticks) == 8 else (0, 0)


def share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Steal's share of the time between two readings."""
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def quiet_round(
    measure: Callable[[], Measured], read: Callable[[], tuple[int, int]] = counters
) -> tuple[Measured, float]:
    """One round and its steal. A round that lost too much is measured again, a few times at most; the
    one that lost least is returned."""
    best: tuple[Measured, float] | None = None
    for attempt in range(1 + AGAIN):
        before = read()
        measured = measure()
        lost = share(before, read())
        if best is None or lost < best[1]:
            best = measured, lost
        if lost <= LIMIT:
            break
        if attempt < AGAIN:
            print(f"steal {lost:.0%}: the round is measured again", file=sys.stderr)
    assert best is not None
    return best


def summary(losses: list[float]) -> str:
    """What a table says of its rounds."""
    noisy = sum(lost > LIMIT for lost in losses)
    text = f"steal of each round: {', '.join(f'{lost:.1%}' for lost in losses)}"
    return text + (f" ({noisy} above {LIMIT:.0%} although repeated)" if noisy else "")
