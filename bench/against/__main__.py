"""Entry: ``./dev bench --against REV [--rounds 7] [--only NAME …]``.

Both builds run in turns on this machine; a ratio is taken within a round. A row is slower beyond its
noise if it is slower in every round and by more than 5% in the median, and again when such rows alone are
measured once more: by chance that happens to one run in hundreds. Exits 1 when there is such a row.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import report
from bench.collectives import ranks
from bench.rpc import metrics, turns
from bench.rpc.pair import BUILD_MARK, interpreters_with

WORSE = 1.05  # times the other build's time
RPC = [
    name
    for name in metrics.METRICS
    if name not in ("send_weft_empty", "idle_cpu", "threads", "cpu_per_call")
]
COLLECTIVES = [
    ("barrier", ""),
    *(("all_reduce", size) for size in ("8 B", "64 KiB", "1 MiB", "16 MiB")),
    *((operation, "16 MiB") for operation in ("broadcast", "all_gather", "all_to_all")),
]
NAMES = [*RPC, *(" ".join(pair).strip() for pair in COLLECTIVES)]


def worse(row: report.Row) -> bool:
    """Whether a row is slower in every round, and not by a hair."""
    best = 1 / row.high if row.higher_is_better else row.low
    return best > 1 and row.cost > WORSE


def _rpc(names: list[str], site: Path, rounds: int) -> dict[str, list[report.Row]]:
    """Rows by metric."""
    sides = ("WEFT", f"WEFT{BUILD_MARK}{site}")
    found = turns.measure(sides, names, rounds, with_limits=False)
    rows: dict[str, list[report.Row]] = {}
    for row in report.rows(*(found.figures[side] for side in sides)):
        rows.setdefault(found.metric[row.name], []).append(row)
    return rows


def _collectives(wanted: list[tuple[str, str]], site: Path, rounds: int) -> list[report.Row]:
    """Ranks of one build each, in turns: two builds do not fit in one process."""
    figures: dict[str, list[report.Figures]] = {"": [], str(site): []}
    for number in range(rounds):
        for folder in list(figures) if number % 2 == 0 else list(figures)[::-1]:
            how = ranks.How(sides=("weft",), build=folder)
            with interpreters_with(folder):
                found = ranks.run(2, ranks.free_port(), wanted, 1, how)
            figures[folder] += found["weft"]
    return report.rows(*figures.values())


def _measure(names: list[str], site: Path, rounds: int) -> dict[str, list[report.Row]]:
    """Rows by the name under which they can be measured again."""
    metrics_ = [name for name in names if name in RPC]
    rows = _rpc(metrics_, site, rounds) if metrics_ else {}
    wanted = [pair for pair in COLLECTIVES if " ".join(pair).strip() in names]
    for row in _collectives(wanted, site, rounds) if wanted else []:
        rows[row.name.removesuffix(" us")] = [row]
    return rows


def main() -> None:
    """Measures, prints the ratios and says which rows are worse."""
    parser = argparse.ArgumentParser(prog="./dev bench --against REV", description=__doc__)
    parser.add_argument("--site", type=Path, required=True, help="the other build's site folder")
    parser.add_argument("--name", default="the other build", help="what the other build is called")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, metavar="NAME")
    arguments = parser.parse_args()
    site = arguments.site.resolve()
    found = _measure(arguments.only, site, arguments.rounds)
    print(report.table([r for rows in found.values() for r in rows], "now", arguments.name, {}))
    suspects = [name for name, rows in found.items() if any(map(worse, rows))]
    if suspects:
        print(f"\nmeasured again: {', '.join(suspects)}\n", flush=True)
        again = _measure(suspects, site, arguments.rounds)
        slower = {row.name for rows in found.values() for row in rows if worse(row)}
        slower &= {row.name for rows in again.values() for row in rows if worse(row)}
        print(report.table([r for rows in again.values() for r in rows], "now", arguments.name, {}))
        for name in sorted(slower):
            print(f"slower than {arguments.name}: {name}")
        if slower:
            raise SystemExit(1)
    print(f"\nnothing is slower than {arguments.name} beyond its noise")


if __name__ == "__main__":
    main()
