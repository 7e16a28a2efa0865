"""Wall clocks that jump by an hour or a year, of one worker at a time: nothing depends on them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import wall_clock

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("shared", ["1", "0"], ids=["shared memory", "sockets"])
@pytest.mark.skipif(wall_clock.COMPILER is None, reason="no C compiler")
def test_calls_and_collectives_under_clock_jumps(tmp_path, shared):
    programs = []
    for rank in range(2):
        own = wall_clock.environment(tmp_path, str(rank))
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
    assert "6 jumps" in said[0], said[0]
    assert "is lost" not in "".join(said), "\n".join(said)
