"""The same figures through OpenMPI, where Debian's ``openmpi-bin`` and ``libopenmpi-dev`` are installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.collectives import operations
from bench.report import Figures

_SOURCE = Path(__file__).with_name("openmpi.c")
_LIMIT = 900.0  # seconds for all


def missing() -> str:
    """Why there is no such column; empty when there can be one."""
    absent = [tool for tool in ("mpicc", "mpirun") if shutil.which(tool) is None]
    return (
        f"no {' and no '.join(absent)} (apt install openmpi-bin libopenmpi-dev)" if absent else ""
    )


def _arguments(wanted: list[tuple[str, str]]) -> dict[str, str]:
    """What the program is asked for, and the name of that figure. It has no bfloat16."""
    asked = {}
    for operation, label in wanted:
        if operation == operations.BFLOAT16:
            continue
        name = f"{operation} {label} us" if label else f"{operation} us"
        asked[f"{operation}|{operations.SIZES[label] if label else 0}"] = name
    return asked


def run(
    ranks: int, wanted: list[tuple[str, str]], rounds: int, *, fresh: bool = False
) -> list[Figures]:
    """Figures by round, those of the slowest rank. Compiles the program first."""
    asked = _arguments(wanted)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "openmpi"
        subprocess.run(["mpicc", "-O2", "-o", program, _SOURCE], check=True, timeout=120)
        launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
        printed = subprocess.run(
            [*launch, program, str(rounds), str(int(fresh)), *asked],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_LIMIT,
        ).stdout
    found: list[Figures] = [{} for _ in range(rounds)]
    for line in printed.splitlines():
        number, figure, microseconds = line.split("\t")
        found[int(number)][asked[figure]] = float(microseconds)
    return found
