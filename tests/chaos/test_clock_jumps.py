"""Wall clocks that jump by an hour or a year, of one worker at a time: nothing depends on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.fixture
def wall_clock(tmp_path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "wall_clock.so"
    source = str(HERE / "wall_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "sockets"])
def test_calls_and_collectives_under_clock_jumps(tmp_path, wall_clock, shared):
    programs = []
    for rank in range(2):
        clock = tmp_path / f"clock{rank}"
        clock.write_bytes(bytes(8))
        own = {"LD_PRELOAD": str(wall_clock), "WALL_CLOCK_OFFSET": str(clock)}
        programs.append(
            subprocess.Popen(
                [sys.executable, str(HERE / "clock_program.py"), str(rank), str(tmp_path)],
                env={**os.environ, "WEFT_SHARED_MEMORY": shared, **own},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = []
    for program in programs:
        try:
            said.append(program.communicate(timeout=90)[0])
        except subprocess.TimeoutExpired:
            program.kill()
            said.append(program.communicate()[0])
    assert [program.returncode for program in programs] == [0, 0], "\n".join(said)
    assert "10 jumps" in said[0], said[0]
    assert "is lost" not in "".join(said), "\n".join(said)
