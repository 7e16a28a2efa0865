"""C++ client to C++ server: runs bench/rpc/cpp's program and words its figures."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from bench.report import Figures, Judged, judge

VARIABLE = "BENCH_RPC_CPP"  # where ./dev says what it built
FLOORS = {"times_floor": "times the raw socket", "times_across": "times it across cores"}


def measure(program: Path, calls: int = 5000, pinned: bool = False) -> dict[str, dict[str, float]]:
    """By name: p50 and p99 in microseconds, and p50 as a multiple of the raw socket's: with both of its
    processes where the system puts them (often on one core, where no core has to be woken), and on two
    cores, as a client and a server that work at the same time are."""
    done = subprocess.run(
        [str(program), str(calls), *(["pinned"] if pinned else [])],
        env={"OMP_NUM_THREADS": "1", **os.environ},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return json.loads(done.stdout)


def judged(program: Path, rounds: int, pinned: bool) -> list[Judged]:
    """Each call beside the raw socket of the same run: across cores where the processes are pinned."""
    found = [measure(program, 3000, pinned) for _ in range(rounds)]
    bound = "raw Unix socket across cores" if pinned else "raw Unix socket"

    def flat(figures: dict[str, dict[str, float]]) -> Figures:
        return {
            f"{name} {quantile} us": row[quantile]
            for name, row in figures.items()
            if not name.startswith("raw")
            for quantile in ("p50", "p99")
        }

    def limit(name: str, figures: Figures) -> float:
        return figures[name.replace(" p99 us", " p50 us") if " p99 " in name else bound]

    return judge(
        "cpp",
        "pinned" if pinned else "free",
        [flat(one) for one in found],
        limit,
        [{bound: one[bound]["p50"]} for one in found],
    )


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
