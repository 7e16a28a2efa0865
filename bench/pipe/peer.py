"""The processes of one side, as the benchmark sees them. While another side is measured they are
stopped (SIGSTOP): torch's Pipe needs TensorPipe, which spins when idle and would be measured too.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0  # seconds for one metric


class Peer:
    """A side's processes; ``measure`` asks them all and returns the first one's figures."""

    def __init__(self, side: str, python: Path | None = None) -> None:
        self.side = side
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if python is not None:  # another torch: none of ours may get in its way
            environment.pop("PYTHONPATH", None)
        environment["BENCH_STORE"] = tempfile.mktemp(prefix="bench-pipe-store-")
        command = [str(python or sys.executable), "-m", "bench.pipe.worker", side]
        self._processes = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env={**environment, "BENCH_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for rank in range(2 if side in ("pipelining", "workers") else 1)
        ]
        self.version = self._answers()[0]["torch"]
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)

    def _answers(self) -> list:
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            ready, _, _ = select.select([process.stdout], [], [], PATIENCE)
            line = process.stdout.readline() if ready else ""
            if not line:
                self.close()
                raise RuntimeError(f"{self.side}: no answer within {PATIENCE:.0f} s, or it ended")
            answers.append(json.loads(line))
        return answers

    def measure(self, name: str) -> dict[str, float]:
        """Runs a metric."""
        self._signal(signal.SIGCONT)
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
        figures = self._answers()[0]
        self._signal(signal.SIGSTOP)
        return figures

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
            process.wait()
