"""The pipeline over workers, by each of its launchers: losses and parameters are those of one process.

The program compares, and exits with 0 only if all are equal bit for bit.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from namespaces import address, joined_hosts

ROOT = Path(__file__).resolve().parents[2]
BOUND = 300  # seconds: only keeps a broken test from hanging
TRAIN = ["-m", "examples.pipeline_workers.train"]
LAUNCH = ["-m", "weft.launch", "--workers"]

pytestmark = pytest.mark.skipif(
    os.environ.get("WEFT_TEST_BACKEND", "WEFT") != "WEFT", reason="a Pipe with a schedule is Weft's"
)


def start(command: Sequence[str], **more: str) -> subprocess.Popen[str]:
    outer = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
    }
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**outer, "OMP_NUM_THREADS": "1", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ends_well(process: subprocess.Popen[str]) -> str:
    try:
        output, _ = process.communicate(timeout=BOUND)
    finally:
        process.terminate()  # weft.launch ends what it has started
        process.wait(BOUND)
    assert process.returncode == 0, output
    return output


def run(arguments: Sequence[str], **more: str) -> str:
    return ends_well(start([sys.executable, *arguments], **more))


def equal(output: str, kills: int) -> bool:
    return (
        f"{kills} kills; losses and parameters equal those of one process bit for bit: True"
        in output
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_workers_that_are_killed(schedule):
    output = run(
        [*LAUNCH, "2", "--restarts=2", *TRAIN, "--steps=12", "--kills=2", f"--schedule={schedule}"]
    )
    assert output.count("goes on with step") >= 1, output
    assert equal(output, 2)


def test_digits():
    assert equal(run([*LAUNCH, "2", *TRAIN, "--data=digits", "--steps=100"]), 0)


def test_torchrun():
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    assert equal(run([*torchrun, *TRAIN, "--steps=12"]), 0)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_restarts_the_workers():
    # Only programs that set them know where the group meets.
    output = run(["-m", "examples.pipeline_workers.ray_launch", "--steps=12", "--kills=2"])
    assert output.count("goes on with step") >= 1, output
    assert equal(output, 2)


@pytest.mark.parametrize("data", ["play", "digits"])
def test_three_hosts(data):
    with joined_hosts(3) as hosts:
        place = {"MASTER_ADDR": address(0), "MASTER_PORT": "29531", "WORLD_SIZE": "3"}
        ranks = [
            start_on(host, [*TRAIN, f"--data={data}", "--steps=20"], {**place, "RANK": str(rank)})
            for rank, host in enumerate(hosts)
        ]
        try:
            assert equal(ends_well(ranks[0]), 0)
            for worker in ranks[1:]:
                ends_well(worker)
        finally:
            for one in ranks:
                one.kill()


def start_on(
    host: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[str]:
    return start(["ip", "netns", "exec", host, sys.executable, *arguments], **environment)


def test_it_says_how_to_start_it():
    process = start([sys.executable, *TRAIN])
    output, _ = process.communicate(timeout=BOUND)
    assert process.returncode == 1
    assert "torchrun --nproc-per-node 3" in output


# Of 8 micro-batches on 4 workers, whose backward takes twice as long as their forward.
SCHEDULES = (("gpipe", 27.3), ("1f1b", 27.3), ("interleaved", 15.8), ("zb", 11.1))


def test_the_schedules_are_drawn_from_a_run(tmp_path):
    draw = ["-m", "examples.pipeline_workers.schedules", "--folder", str(tmp_path)]
    lines = run([*LAUNCH, "4", *draw])
    for schedule, bubble in SCHEDULES:
        found = re.search(rf"{schedule}: .* bubble ([\d.]+)%, on paper ([\d.]+)%", lines)
        assert found, lines
        assert abs(float(found[2]) - bubble) < 3  # stages are not quite of one length
        assert (tmp_path / f"schedule-{schedule}.svg").exists()
