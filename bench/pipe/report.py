"""The figures of all sides: medians over the rounds, ratios within them, targets; table, JSON, plot."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import report as rows_of
from bench.aims import aim_of
from bench.pipe.metrics import OVERLAPS, STAGES, Figures

Rounds = dict[str, list[Figures]]  # by side
PEER = "pipelining"

NAMES = {
    "weft": "Weft",
    "workers": "Weft, stages on workers",
    "torch": "torch's Pipe",
    "pipelining": "torch.distributed.pipelining, gloo",
}
#: Us that a task of a tiny stage may take beside its work.
LIMITS = {
    "a task, Python stage, forward us": 10.0,
    "a task, Python stage, with backward us": 25.0,
    "a task, Python stage, with checkpointing us": 50.0,
}


def ideal(name: str) -> float | None:
    """The speed-up that GPipe's schedule allows, for an overlap figure."""
    found = re.match(r"overlap.*, m=(\d+)\b", name)
    if found is None:
        return None
    chunks = int(found[1])
    return chunks * STAGES / (chunks + STAGES - 1)


def limit(name: str, pipelining: Figures) -> float | None:
    """What a figure of Weft's is judged by: the ideal, so many us, or the peer's time in that round."""
    return ideal(name) or LIMITS.get(name) or pipelining.get(f"{PEER} {name}")


def judged(rounds: Rounds, side: str = "weft") -> list[rows_of.Judged]:
    """A side's figures beside their limits, aims and torch.distributed.pipelining."""
    peer = rounds.get("pipelining")
    bounds = [{f"{PEER} {name}": figures[name] for name in figures} for figures in peer or []]
    return rows_of.judge(
        "pipe" if side == "weft" else f"pipe-{side}",
        NAMES[side],
        rounds[side],
        limit,
        bounds or [{} for _ in rounds[side]],
        peer,
    )


def medians(rounds: Rounds) -> dict[str, Figures]:
    """The median of every figure, by side."""
    return {
        side: {
            name: statistics.median(one[name] for one in figures)
            for name in (figures[0] if figures else {})
        }
        for side, figures in rounds.items()
    }


def _verdict(name: str, value: float) -> str:
    aim = aim_of("pipe", name)
    best = ideal(name)
    if best is not None:
        share = value / best
        missed = aim is not None and 1 / share > aim.most
        return f"{share:.0%} of the ideal {best:.2f}" + (" (!)" if missed else "")
    if name in LIMITS:
        return f"at most {LIMITS[name]:g}" + ("" if value <= LIMITS[name] else " (!)")
    return ""


def table(rounds: Rounds, versions: dict[str, str]) -> str:
    """The table for people, in Markdown; (!) marks what misses its target."""
    found = medians(rounds)
    sides = list(found)
    head = [f"{NAMES[side]} ({versions[side]})" for side in sides]
    lines = [
        f"| measured | {' | '.join(head)} | target | Weft's, of torch's Pipe |",
        "|---" * (len(sides) + 3) + "|",
    ]
    ratios = {row.name: row for row in rows(rounds)}
    for name in dict.fromkeys(name for figures in found.values() for name in figures):
        cells = [f"{found[side][name]:,.3g}" if name in found[side] else "" for side in sides]
        verdict = _verdict(name, found["weft"][name]) if name in found["weft"] else ""
        row = ratios.get(name)
        ratio = f"{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})" if row else ""
        lines.append(f"| {name} | {' | '.join(cells)} | {verdict} | {ratio} |")
    return "\n".join(lines)


def rows(rounds: Rounds) -> list[rows_of.Row]:
    """Weft beside torch's Pipe, round by round; [] without the latter."""
    ours, theirs = rounds.get("weft", []), rounds.get("torch", [])
    if not ours or not theirs:
        return []
    common = [name for name in ours[0] if name in theirs[0] and "count" not in name]

    def pick(side: list[Figures]) -> list[Figures]:
        return [{name: figures[name] for name in common} for figures in side]

    return rows_of.rows(pick(ours), pick(theirs))


def write(folder: Path, rounds: Rounds, versions: dict[str, str]) -> None:
    """Writes ``pipe.json`` and, where matplotlib is there, ``pipe.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {
        "versions": versions,
        "medians": medians(rounds),
        "ratios": [asdict(row) for row in rows(rounds)],
        "rounds": rounds,
    }
    (folder / "pipe.json").write_text(json.dumps(data, indent=1))
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return
    found = medians(rounds)
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 4), width_ratios=[1.2, 1, 1])
    _bars(axes[0], found)
    for axis, way in zip(axes[1:], ("forward", "both ways"), strict=True):
        _overlap(axis, found, way)
    axes[1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "pipe.png", dpi=120)
    pyplot.close(figure)


_COLOURS = {"weft": "#0072b2", "workers": "#cc79a7", "torch": "#e69f00", "pipelining": "#009e73"}


def _bars(axis: Any, found: dict[str, Figures]) -> None:
    ways = ("forward", "with backward", "with checkpointing")
    width = 0.8 / len(found)
    for place, (side, figures) in enumerate(found.items()):
        heights = [figures.get(f"a task, Python stage, {way} us", 0) for way in ways]
        at = [index + place * width for index in range(len(ways))]
        bars = axis.bar(at, heights, width, color=_COLOURS[side], label=NAMES[side])
        labels = [f"{height:.0f}" if height else "" for height in heights]
        axis.bar_label(bars, labels, fontsize=8, padding=2)
    axis.set_xticks([index + 0.4 - width / 2 for index in range(len(ways))], ways)
    axis.set_title("overhead of a task, µs", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)


def _overlap(axis: Any, found: dict[str, Figures], way: str) -> None:
    best = [chunks * STAGES / (chunks + STAGES - 1) for chunks in OVERLAPS]
    axis.plot(OVERLAPS, best, color="#666666", linestyle="--", label="ideal")
    for side, figures in found.items():
        names = [f"overlap, busy, {way}, m={chunks} x" for chunks in OVERLAPS]
        if all(name in figures for name in names):
            values = [figures[name] for name in names]
            axis.plot(OVERLAPS, values, "o-", color=_COLOURS[side], label=NAMES[side], markersize=4)
    axis.axhline(1, color="#cccccc", linewidth=0.8)
    axis.set_xscale("log", base=2)
    axis.set_xticks(OVERLAPS, [str(chunks) for chunks in OVERLAPS])
    axis.set(xlabel="micro-batches", ylim=(0.5, 2.05))
    axis.set_title(f"speed-up by overlap, {way}", loc="left", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
