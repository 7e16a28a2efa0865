"""The short form of the fuzzer of pickles, always with the same pickles.

The long one is `./dev fuzz fuzz_registered`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).resolve().parent / "fuzz_registered.py"


pytestmark = pytest.mark.timeout(300)


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(FUZZER), "--findings", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    return done.returncode, done.stdout


def test_some_pickles(tmp_path):
    status, output = run(tmp_path, "--runs", "5000", "--seed", "1035897150")
    assert status == 0, output
    assert "stat::number_of_executed_units: 5000" in output
