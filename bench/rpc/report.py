"""Medians, ratios with their spread, and how they are shown: table, JSON, plot."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

HIGHER_IS_BETTER = ("per_s", "gb_s", "x")


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
        return self.name.split()[-1] in HIGHER_IS_BETTER


def rows(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> list[Row]:
    """Pairs the rounds: a ratio is taken within a round, so that drift cancels."""
    result = []
    for name in ours[0]:
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


def table(found: list[Row], ours: str, theirs: str, floors: dict[str, float]) -> str:
    """The table for people, in Markdown."""
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
    floors: dict[str, float],
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
