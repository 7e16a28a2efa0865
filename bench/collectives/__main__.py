"""Entry: ``./dev bench collectives [--ranks 2 4] [--rounds 5] [--only NAME …] [--fresh] [--allocate]``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bench import report, steal
from bench.collectives import openmpi, operations, ranks, table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench collectives", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are shown")
    names = [*operations.OPERATIONS, "barrier"]
    parser.add_argument("--only", nargs="*", default=names, choices=names)
    parser.add_argument(
        "--fresh", action="store_true", help="ranks write their input anew before each call"
    )
    parser.add_argument(
        "--allocate", action="store_true", help="Weft's tensors come from the group's backend"
    )
    parser.add_argument("--pinned", action="store_true", help="each rank on a core")
    parser.add_argument("--smallest", type=int, default=0, help="bytes")
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
            if (
                arguments.smallest
                <= size
                <= min(arguments.largest, (128 << 20) if all_sizes else (16 << 20))
            ):
                wanted.append((operation, label))
    return wanted


def main() -> None:
    """Measures both backends in turn, then OpenMPI, for each number of ranks; prints the tables."""
    arguments = _arguments()
    wanted = _wanted(arguments)
    without = openmpi.missing()
    if without:
        print(f"OpenMPI is not measured: {without}", file=sys.stderr)
    for count in arguments.ranks:
        how = ranks.How(arguments.fresh, arguments.allocate, arguments.pinned)
        found = ranks.run(count, ranks.free_port(), wanted, arguments.rounds, how)
        theirs = (
            [] if without else openmpi.run(count, wanted, arguments.rounds, fresh=arguments.fresh)
        )
        gloo = report.rows(found["weft"], found["gloo"])
        both = [
            {name: figures[name] for name in other}
            for figures, other in zip(found["weft"], theirs, strict=False)
        ]
        mpi = report.rows(both, theirs) if theirs else []
        together = table.summary(gloo, mpi)
        print(f"\n{count} ranks, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
        print(table.table(gloo, mpi, together))
        judged = ranks.judged(found, count, arguments.pinned)
        print("\n" + report.judged_table(judged, "gloo"))
        print(f"\n{report.verdicts(judged)}\n- {steal.summary(ranks.losses(found))}")
        sys.stdout.flush()
        stem = f"collectives-{count}-ranks"
        report.write(arguments.out, gloo, "weft", "gloo", together, stem=stem)
        if mpi:
            report.write(arguments.out, mpi, "weft", "OpenMPI", together, stem=stem)


if __name__ == "__main__":
    main()
