"""Starts the example: four processes under torchrun, on this machine.

    python -m examples.digits.launch [--short] [--backend WEFT|TENSORPIPE] [--out DIR]

Exits with 0 only if every process ended well and the test accuracy was reached.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from examples.digits import config

ROOT = Path(__file__).resolve().parents[2]


def command(settings: config.Config) -> list[str]:
    """The torchrun command line."""
    count = str(len(config.WORKERS))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program = ["--nproc-per-node", count, "-m", "examples.digits.main"]
    return [*torchrun, *program, *config.to_arguments(settings)]


def end(process: subprocess.Popen[bytes]) -> None:
    """Asks torchrun to end its workers, and insists after a while."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=40)  # torchrun gives its workers 30 s
    process.kill()
    process.wait()


def torchrun(settings: config.Config) -> int:
    """Runs the four processes to their end and returns the exit status."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command(settings), cwd=ROOT, env=environment)
    # Otherwise a launcher that is asked to end would leave its workers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return process.wait(timeout=settings.deadline + 60)
    except subprocess.TimeoutExpired:
        print(f"no end after {settings.deadline + 60:.0f} s", file=sys.stderr)
        end(process)
        return 1
    except KeyboardInterrupt:
        end(process)
        return 128 + signal.SIGINT
    except BaseException:
        end(process)
        raise


def main(argv: list[str] | None = None) -> int:
    """Runs the example and judges its result."""
    settings = config.parse(argv, "examples.digits.launch")
    if settings.backend == "WEFT" and importlib.util.find_spec("weft") is None:
        print("no Weft here: start this with `./dev demo`, or `./dev shell -- …`", file=sys.stderr)
        return 2
    figures = settings.out / "results.json"
    figures.unlink(missing_ok=True)
    status = torchrun(settings)
    if status != 0:
        print(f"the run failed (torchrun's exit status: {status})", file=sys.stderr)
        return 1
    if not json.loads(figures.read_text())["passed"]:
        print("the run ended, but the accuracy asked for was not reached", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
