"""C++ client to C++ server: runs bench/rpc/cpp's program and words its figures."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

VARIABLE = "BENCH_RPC_CPP"  # where ./dev says what it built
FLOORS = {"times_floor": "times the raw socket", "times_across": "times it across cores"}


def measure(program: Path, calls: int = 5000) -> dict[str, dict[str, float]]:
    """By name: p50 and p99 in microseconds, and p50 as a multiple of the raw socket's: with both of its
    processes where the system puts them (often on one core, where no core has to be woken), and on two
    cores, as a client and a server that work at the same time are."""
    done = subprocess.run(
        [str(program), str(calls)],
        env={"OMP_NUM_THREADS": "1", **os.environ},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return json.loads(done.stdout)


def table(figures: dict[str, dict[str, float]]) -> str:
    """As Markdown."""
    lines = [
        f"| C++ to C++, 1-element tensor | p50 us | p99 us | {' | '.join(FLOORS.values())} |",
        "|---|---|---|---|---|",
    ]
    for name, row in figures.items():
        times = " | ".join(f"{row[key]:.1f}" for key in FLOORS)
        lines.append(f"| {name} | {row['p50']:.1f} | {row['p99']:.1f} | {times} |")
    return "\n".join(lines)
