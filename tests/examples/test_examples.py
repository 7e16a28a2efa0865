"""Runs the small examples and the quickstart's listings as a reader would: in two real processes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BACKEND = os.environ.get("WEFT_TEST_BACKEND", "WEFT")
BOUND = 90  # seconds for two processes to import torch, meet, talk and leave


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


def test_a_pipeline_over_workers_that_are_killed():
    if BACKEND != "WEFT":
        pytest.skip("a Pipe with a schedule is Weft's")
    output = run_all([["-m", "examples.pipeline_workers.train", "--steps=12", "--kills=1"]])[0]
    assert "goes on with step" in output
    assert "1 kills; the parameters equal those of one process bit for bit: True" in output


# Of 8 micro-batches on 4 workers, whose backward takes twice as long as their forward.
SCHEDULES = (("gpipe", 27.3), ("1f1b", 27.3), ("interleaved", 15.8), ("zb", 11.1))


def test_the_schedules_are_drawn_from_a_run(tmp_path):
    if BACKEND != "WEFT":
        pytest.skip("a Pipe with a schedule is Weft's")
    draw = ["-m", "examples.pipeline_workers.schedules", "--folder", str(tmp_path)]
    lines = run_all([draw])[0]
    for schedule, bubble in SCHEDULES:
        found = re.search(rf"{schedule}: .* bubble ([\d.]+)%, on paper ([\d.]+)%", lines)
        assert found, lines
        assert abs(float(found[2]) - bubble) < 3  # stages are not quite of one length
        assert (tmp_path / f"schedule-{schedule}.svg").exists()


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
