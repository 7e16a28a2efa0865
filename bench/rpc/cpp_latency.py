"""C++ client to C++ server: runs bench/rpc/cpp's program and words its figures."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path


def measure(program: Path, calls: int = 5000) -> dict[str, dict[str, float]]:
    """By name: p50 and p99 in microseconds, and p50 as a multiple of the raw socket's."""
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
        "| C++ to C++, 1-element tensor | p50 us | p99 us | times the raw socket |",
        "|---|---|---|---|",
    ]
    for name, row in figures.items():
        lines.append(f"| {name} | {row['p50']:.1f} | {row['p99']:.1f} | {row['times_floor']:.1f} |")
    return "\n".join(lines)
