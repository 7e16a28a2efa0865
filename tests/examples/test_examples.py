"""Runs the small examples and the quickstart's listings as a reader would: in two real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BACKEND = os.environ.get("WEFT_TEST_BACKEND", "WEFT")
BOUND = 90  # seconds for two processes to import torch, meet, talk and leave


def run_all(commands: list[list[str]], folder: Path = ROOT) -> list[str]:
    """Runs these at the same time; returns their outputs if all end well within the bound."""
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        subprocess.Popen([sys.executable, *command], cwd=folder, env=environment, **streams)
        for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=BOUND)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


def test_two_workers_and_a_remote_module():
    module = ["-m", "examples.remote_module.worker", "--backend", BACKEND]
    outputs = run_all([[*module, "--rank", "0"], [*module, "--rank", "1"]])
    assert "(128, 20) went to worker1, (128, 30) came back" in outputs[0]


def test_weights_for_several_actors():
    if BACKEND != "WEFT":
        pytest.skip("weft.empty is Weft's")
    module = ["-m", "examples.weights.worker", "--world-size", "3"]
    outputs = run_all([[*module, "--rank", str(rank)] for rank in range(3)])
    assert "5 rounds, 2 actors, 40 MiB went without a copy" in outputs[0]


def test_a_model_with_collectives_on_two_ranks(tmp_path):
    if BACKEND != "WEFT":
        pytest.skip("torch.ops.weft is Weft's")
    model = str(tmp_path / "model.pt")
    run_all([["-m", "examples.cpp_collectives.model", model]])
    rank = "import os, sys; os.environ.update(RANK=sys.argv.pop(2), WORLD_SIZE='2'); "
    rank += "from examples.cpp_collectives.worker import main; main()"
    outputs = run_all([["-c", rank, model, str(number)] for number in range(2)])
    for number, output in enumerate(outputs):
        assert f"Python rank {number} of 2: rows from " in output
        assert "everybody's add up to 0.000" in output


def test_training_outlives_a_killed_worker():
    if BACKEND != "WEFT":
        pytest.skip("shrinking a group is Weft's")
    launch = ["-m", "examples.elastic.launch", "--kills", "1", "--seed", "3"]
    (output,) = run_all([launch])  # it exits with 0 only if the accuracy was reached
    assert len(re.findall(r"^worker \d is killed$", output, re.MULTILINE)) == 1
    assert "on all workers alike: True" in output


def listings() -> dict[str, str]:
    """The quickstart's Python listings, by the file name in their first line."""
    text = (ROOT / "docs/guide/quickstart.md").read_text()
    return dict(re.findall(r"```python\n# (\w+\.py)[^\n]*\n(.*?)```", text, re.DOTALL))


@pytest.mark.parametrize("name", ["calls.py", "modules.py"])
def test_quickstart_listing(name, tmp_path):
    if BACKEND != "WEFT":
        pytest.skip("the quickstart is about Weft")
    (tmp_path / name).write_text(listings()[name])
    first, _ = run_all([[name, "0"], [name, "1"]], tmp_path)
    expected = re.search(rf"\$ python {name} 0\n(.*?)```", quickstart(), re.DOTALL)
    assert expected is not None
    for line in expected[1].splitlines():
        assert line in first


def quickstart() -> str:
    return (ROOT / "docs/guide/quickstart.md").read_text()
