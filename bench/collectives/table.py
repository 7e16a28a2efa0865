"""The table of collectives: Gloo, OpenMPI where it was measured, Weft, and what they are to each other."""

from __future__ import annotations

import math

from bench.collectives import operations
from bench.report import Row

_LARGE = 1 << 20


def _size(name: str) -> int:
    """Bytes of a figure such as ``all_reduce 1 MiB us``; 0 for a barrier."""
    return next((size for label, size in operations.SIZES.items() if f" {label} " in name), 0)


def mean_speed(rows: list[Row]) -> float:
    """How many times as fast as the other side, the geometric mean over all rows."""
    return math.exp(sum(math.log(1 / row.ratio) for row in rows) / len(rows))


def summary(gloo: list[Row], mpi: list[Row]) -> dict[str, float]:
    """What the rows say together."""
    found = {"times gloo's speed, geometric mean": mean_speed(gloo)}
    large = [row for row in mpi if _size(row.name) >= _LARGE]
    if large:
        least = min(large, key=lambda row: 1 / row.ratio)
        found["times OpenMPI's speed from 1 MiB on, geometric mean"] = mean_speed(large)
        found[f"the least of these ({least.name.removesuffix(' us')})"] = 1 / least.ratio
    ours = {row.name: row.ours for row in gloo}
    for label in operations.SIZES:
        plain = ours.get(f"all_reduce {label} us")
        narrow = ours.get(f"{operations.BFLOAT16} {label} us")
        if plain and narrow:
            found[f"bf16's time per byte to float32's, all_reduce {label}"] = narrow / plain
    return found


def table(gloo: list[Row], mpi: list[Row], together: dict[str, float]) -> str:
    """For people, in Markdown. Times are microseconds."""
    others = {row.name: row for row in mpi}
    lines = ["| measured | gloo | OpenMPI | weft | to gloo (lowest to highest) | to OpenMPI |"]
    lines.append("|---|---|---|---|---|---|")
    for row in gloo:
        other = others.get(row.name)
        theirs, ratio = (f"{other.theirs:,.4g}", f"{1 / other.ratio:.2f}") if other else ("", "")
        lines.append(
            f"| {row.name} | {row.theirs:,.4g} | {theirs} | {row.ours:,.4g} | "
            f"{1 / row.ratio:.2f} ({1 / row.high:.2f} to {1 / row.low:.2f}) | {ratio} |"
        )
    lines += ["", "Times the speed; and, in the same run:"]
    lines += [f"- {name}: {value:,.4g}" for name, value in together.items()]
    return "\n".join(lines)
