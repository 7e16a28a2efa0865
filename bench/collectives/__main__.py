"""Entry: ``./dev bench collectives [--ranks 2 4] [--rounds 5] [--only NAME …] [--largest BYTES]``."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

from bench.collectives import operations, ranks
from bench.rpc import report


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench collectives", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are shown")
    names = [*operations.OPERATIONS, "barrier"]
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    parser.add_argument("--largest", type=int, default=128 << 20, help="bytes")
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    return parser.parse_args()


def _wanted(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    wanted = []
    for operation in arguments.only:
        if operation == "barrier":
            wanted.append((operation, ""))
            continue
        # One operation shows what the largest size does; the others would take minutes more.
        all_sizes = operation == "all_reduce"
        for label, size in operations.SIZES.items():
            if size <= min(arguments.largest, (128 << 20) if all_sizes else (16 << 20)):
                wanted.append((operation, label))
    return wanted


def main() -> None:
    """Measures both backends in turn, for each number of ranks, and prints the tables."""
    arguments = _arguments()
    for count in arguments.ranks:
        found = ranks.run(count, ranks.free_port(), _wanted(arguments), arguments.rounds)
        rows = report.rows(found["weft"], found["gloo"])
        mean = math.exp(sum(math.log(1 / row.ratio) for row in rows) / len(rows))
        limits = {"times gloo's speed, geometric mean": mean}
        print(f"\n{count} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
        print(report.table(rows, "weft", "gloo", limits))
        sys.stdout.flush()
        report.write(arguments.out, rows, "weft", "gloo", limits, stem=f"collectives-{count}-ranks")


if __name__ == "__main__":
    main()
