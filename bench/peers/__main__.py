"""Entry: ``./dev bench peers [--rounds 5] [--only ray monarch] [--publish]``: calls by Weft, Ray and
Monarch. ``--publish`` writes the tables into docs/reference/performance.md.

A Python function on another process of this host, and 16 MiB there and back. Each round starts each
system anew, one after the other, in an order that turns. Needs ``pip install ray torchmonarch`` in the
environment that has torch and Weft; a peer that is missing is left out, and named.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

from bench import limits as machine
from bench import publish, report
from bench.peers.sides import Figures

PACKAGES = {"ray": ("ray", "ray"), "monarch": ("monarch", "torchmonarch")}
LIMIT = 600  # seconds for one system in one round


def measure(side: str) -> Figures:
    """The figures of one system, in processes of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.peers.sides", side],
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
    )
    if done.returncode != 0:
        raise SystemExit(f"{side} ended with {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measures, and prints a table for each peer."""
    parser = argparse.ArgumentParser(prog="./dev bench peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(PACKAGES))
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    parser.add_argument("--publish", action="store_true", help="into the documentation, too")
    arguments = parser.parse_args()
    if arguments.publish and arguments.only:
        parser.error("--publish takes the whole run, without --only")
    wanted = arguments.only or list(PACKAGES)
    peers = [peer for peer in wanted if importlib.util.find_spec(PACKAGES[peer][0])]
    for peer in set(wanted) - set(peers):
        print(f"{peer} is left out: pip install {PACKAGES[peer][1]}", file=sys.stderr)
    if not peers:
        raise SystemExit("no peer is installed here")
    floors = machine.measure()
    sides = ["weft", *peers]
    found: dict[str, list[Figures]] = {side: [] for side in sides}
    for number in range(arguments.rounds):
        for index in range(len(sides)):
            side = sides[(index + number) % len(sides)]
            found[side].append(measure(side))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    limits = {**floors, "load average": os.getloadavg()[0], "cores": float(os.cpu_count() or 0)}
    tables = []
    for peer in peers:
        name = f"{peer} {importlib.metadata.version(PACKAGES[peer][1])}"
        rows = report.rows(found["weft"], found[peer])
        print(report.table(rows, "weft", name, limits), end="\n\n")
        tables.append(report.table(rows, "Weft", name, {}).partition("\n\n")[0])
        report.write(arguments.out, rows, "weft", peer, limits, stem="peers")
    print(f"Python {platform.python_version()}, {platform.machine()}")
    if arguments.publish:
        how = f"medians of {arguments.rounds} rounds"
        text = "\n\n".join((publish.preface("peers", how, floors), *tables))
        print(f"published in {publish.put('peers', text)}")


if __name__ == "__main__":
    main()
