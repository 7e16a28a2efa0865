"""Figures of all rounds as rows: medians, ratios with their spread, multiples of the machine's limits,
and how they are shown: table, JSON, plot.

A figure's name ends in its unit: ``us``, ``ms``, ``pct`` and ``count`` are better low, ``per_s``,
``gb_s`` and ``x`` high. A ratio is taken within a round, so that drift cancels.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.aims import aim_of

HIGHER_IS_BETTER = ("per_s", "gb_s", "x")
Figures = dict[str, float]


@dataclass
class Row:
    """One figure of both sides over all rounds."""

    name: str
    ours: float
    theirs: float
    ratio: float  # ours to theirs: medians of the rounds' ratios
    low: float
    high: float

    @property
    def higher_is_better(self) -> bool:
        return better_high(self.name)

    @property
    def cost(self) -> float:
        """How many times the other side's time, whichever way the figure counts."""
        return 1 / max(self.ratio, 1e-9) if self.higher_is_better else self.ratio


def better_high(name: str) -> bool:
    """Whether a figure is a speed."""
    return name.split()[-1] in HIGHER_IS_BETTER


def rows(ours: list[Figures], theirs: list[Figures]) -> list[Row]:
    """Pairs the rounds; what only one side has is left out."""
    result = []
    for name in ours[0]:
        if name not in theirs[0]:
            continue
        a = [figures[name] for figures in ours]
        b = [figures[name] for figures in theirs]
        ratios = [x / max(y, 1e-9) for x, y in zip(a, b, strict=True)]
        result.append(
            Row(
                name,
                statistics.median(a),
                statistics.median(b),
                statistics.median(ratios),
                min(ratios),
                max(ratios),
            )
        )
    return result


@dataclass
class Judged:
    """A figure beside its limit, its aim and its peer."""

    part: str  # which of the table's parts, as aims name it
    where: str  # "free", "pinned"
    name: str
    ours: float
    limit: float | None  # in the figure's unit
    times: float | None  # the time, as a multiple of the limit's
    low: float | None
    high: float | None
    aim: str
    met: bool | None  # None: no aim
    theirs: float | None
    cost: float | None  # the time, as a multiple of the peer's


def judge(
    part: str,
    where: str,
    ours: list[Figures],
    limit: Callable[[str, Figures], float | None],
    limits: list[Figures],
    theirs: list[Figures] | None = None,
) -> list[Judged]:
    """Each figure of ours beside ``limit(name, the round's limits)``, its aim and the peer's figure."""
    peers = {row.name: row for row in rows(ours, theirs)} if theirs else {}
    judged = []
    for name in ours[0]:
        found = [
            limit(name, {**figures, **all_}) for figures, all_ in zip(ours, limits, strict=True)
        ]
        times: list[float] = []
        if None not in found:
            for figures, bound in zip(ours, found, strict=True):
                value = max(figures[name], 1e-9)
                times.append(bound / value if better_high(name) else value / max(bound, 1e-9))
        middle = statistics.median(times) if times else None
        aim = aim_of(part, name) if times else None
        peer = peers.get(name)
        judged.append(
            Judged(
                part,
                where,
                name,
                statistics.median(figures[name] for figures in ours),
                statistics.median(found) if times else None,
                middle,
                min(times, default=None),
                max(times, default=None),
                f"{aim.most:.3g} times {aim.limit}" if aim else "",
                middle <= aim.most if aim else None,
                peer.theirs if peer else None,
                peer.cost if peer else None,
            )
        )
    return judged


def judged_table(found: list[Judged], peer: str) -> str:
    """The table for people, in Markdown: what is short of its aim in bold."""
    lines = [
        f"| | | Weft | machine's limit | times it (lowest to highest) | aim, at most | | {peer} | "
        "of its time |",
        "|---" * 9 + "|",
    ]
    for row in found:
        times = ""
        if row.times is not None:
            times = f"{row.times:.2f}" if row.met is not False else f"**{row.times:.2f}**"
            times += f" ({row.low:.2f} to {row.high:.2f})"
        verdict = {True: "met", False: "short", None: ""}[row.met]
        cells = [
            row.name,
            row.where,
            f"{row.ours:,.4g}",
            "" if row.limit is None else f"{row.limit:,.4g}",
            times,
            row.aim,
            verdict,
            "" if row.theirs is None else f"{row.theirs:,.4g}",
            "" if row.cost is None else f"{row.cost:.2f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdicts(found: list[Judged]) -> str:
    """How many aims are met, and which are not."""
    with_aim = [row for row in found if row.met is not None]
    short = [row for row in with_aim if not row.met]
    lines = [f"{len(with_aim) - len(short)} of {len(with_aim)} aims met"]
    lines += [
        f"- short: {row.part}, {row.name}, {row.where}: {row.times:.2f}, aim {row.aim}"
        for row in short
    ]
    return "\n".join(lines)


def table(found: list[Row], ours: str, theirs: str, floors: Figures) -> str:
    """Both sides alone, in Markdown."""
    lines = [f"| measured | {theirs} | {ours} | ratio (lowest to highest) |", "|---|---|---|---|"]
    for row in found:
        better = "times the speed" if row.higher_is_better else "of its cost"
        lines.append(
            f"| {row.name} | {row.theirs:,.4g} | {row.ours:,.4g} | "
            f"{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f}) {better} |"
        )
    lines += ["", "Limits of this machine in the same run: "]
    lines += [f"- {name}: {value:,.4g}" for name, value in floors.items()]
    return "\n".join(lines)


def write(
    folder: Path,
    found: list[Row],
    ours: str,
    theirs: str,
    floors: Figures,
    stem: str = "rpc",
) -> None:
    """Writes ``STEM-OURS-THEIRS.json`` and, where matplotlib is there, ``.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-{ours}-{theirs}".lower().replace("/", "_")
    data = {
        "ours": ours,
        "theirs": theirs,
        "rows": [asdict(row) for row in found],
        "floors": floors,
    }
    path.with_suffix(".json").write_text(json.dumps(data, indent=1))
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    gain = [row.ratio if row.higher_is_better else 1 / max(row.ratio, 1e-9) for row in found]
    figure, axes = plt.subplots(figsize=(9, 0.32 * len(found) + 1.2))
    axes.barh([row.name for row in found], gain, color="#3b6ea5")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel(f"times better than {theirs} (log scale)")
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=120)
