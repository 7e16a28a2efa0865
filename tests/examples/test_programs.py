"""The examples that people come for, run short: parameter server, actors and learner, DDP with RPC."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BOUND = 280  # seconds, for a machine that does much else
pytestmark = pytest.mark.timeout(BOUND + 20)


def run(*command: str, status: int = 0) -> str:
    """What the program prints; it must end with this status, within the bound."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def torchrun(ranks: int, *command: str) -> str:
    where = [f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
    return run("torch.distributed.run", *where, *command)


def test_a_parameter_server_survives_kills():
    output = run("examples.parameter_server.launch", "--steps", "100", "--kills", "2")
    assert output.count("the server is killed and started again") == 2
    assert "200 of 200 steps were applied" in output


def falls(output: str) -> list[float]:
    return [float(number) for number in re.findall(r"a pole falls ([\d.]+) times", output)]


def test_actors_teach_a_learner():
    output = run("weft.launch", "--workers", "2", "-m", "examples.actors.train", "--rounds", "16")
    found = falls(output)
    assert found[-1] < found[0] / 3, output
    assert "is missing" not in output


def test_a_hybrid_of_ddp_and_rpc_learns():
    output = torchrun(3, "-m", "examples.ddp_rpc.train", "--epochs", "4")
    found = re.search(r"2 trainers: ([\d.]+)% of the held-out digits are right", output)
    assert found, output
    assert float(found[1]) > 60  # 10 is chance; the whole run reaches more


@pytest.mark.parametrize("name", ["parameter_server", "actors", "ddp_rpc", "text_generation"])
def test_each_program_is_under_150_lines(name):
    for path in (ROOT / "examples" / name).glob("*.py"):
        assert len(path.read_text().splitlines()) < 150, path.name
