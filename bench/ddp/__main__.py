"""Entry: ``./dev bench ddp [--ranks 2] [--rounds 5]``: steps of a 25 M-parameter MLP under DDP."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from bench import report
from bench.collectives.ranks import free_port, gather, slowest
from bench.ddp import profile, ranks

ALONE = "the same step without DDP"


def measure(count: int, rounds: int, pinned: bool) -> tuple[list[report.Judged], list[report.Row]]:
    """Both backends' steps in turn, beside the step without DDP."""
    found = slowest(gather(ranks.rank, count, free_port(), rounds, pinned))
    judged = report.judge(
        f"ddp-{count}",
        f"{count} ranks, {'pinned' if pinned else 'free'}",
        found["weft"],
        lambda _name, figures: figures[ALONE],
        [{ALONE: one["step ms"]} for one in found["alone"]],
        found["gloo"],
    )
    return judged, report.rows(found["weft"], found["gloo"])


def main() -> None:
    """Measures and prints the table; or a profile."""
    parser = argparse.ArgumentParser(prog="./dev bench ddp", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pinned", action="store_true", help="each rank on a core")
    parser.add_argument(
        "--profile", action="store_true", help="only this: where a step's time goes"
    )
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    arguments = parser.parse_args()
    if arguments.profile:
        print(gather(profile.rank, arguments.ranks, free_port(), arguments.pinned)[0])
        return
    judged, rows = measure(arguments.ranks, arguments.rounds, arguments.pinned)
    print(report.judged_table(judged, "gloo"))
    print(f"\n{report.verdicts(judged)}\n- load average at the end {os.getloadavg()[0]:.1f}")
    report.write(arguments.out, rows, "weft", "gloo", {}, stem=f"ddp-{arguments.ranks}-ranks")


if __name__ == "__main__":
    main()
