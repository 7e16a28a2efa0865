"""Entry: ``./dev bench ddp [--ranks 2] [--rounds 5]``: steps of a 25 M-parameter MLP under DDP."""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from bench.collectives.ranks import free_port, gather, slowest
from bench.ddp import ranks
from bench.rpc import report


def main() -> None:
    """Measures both backends in turn and prints the table."""
    parser = argparse.ArgumentParser(prog="./dev bench ddp", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    arguments = parser.parse_args()
    found = slowest(gather(ranks.rank, arguments.ranks, free_port(), arguments.rounds))
    rows = report.rows(found["weft"], found["gloo"])
    alone = statistics.median(figures["step ms"] for figures in found["alone"])
    limits = {"the same step without DDP ms": alone, "load average": os.getloadavg()[0]}
    print(report.table(rows, "weft", "gloo", limits))
    report.write(arguments.out, rows, "weft", "gloo", limits, stem=f"ddp-{arguments.ranks}-ranks")


if __name__ == "__main__":
    main()
