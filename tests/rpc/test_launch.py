"""`python -m weft.launch`: a program and its workers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import waiting

from weft import launch

BOUND = 90

BESIDE = "def where():\n    import os\n    return os.environ['RANK'], os.getpid()\n"

PROGRAM = """
import os, sys, time
import torch.distributed.rpc as rpc
import weft
from beside import where

weft.init_rpc("driver", rank=0, world_size=int(os.environ["WORLD_SIZE"]))
print("asks:", [rpc.rpc_sync(f"worker{rank}", where)[0] for rank in (1, 2)], sys.argv[1:])
rpc.shutdown()
sys.exit(3 if "fails" in sys.argv else 0)
"""

KILLS = """
import os, signal
import torch.distributed.rpc as rpc
import weft
from beside import where
from waiting import wait_until

weft.init_rpc("driver", rank=0, world_size=int(os.environ["WORLD_SIZE"]))
before = rpc.rpc_sync("worker1", where)[1]
os.kill(before, signal.SIGKILL)

def is_back():
    try:
        return rpc.rpc_sync("worker1", where, timeout=5)[1] != before
    except RuntimeError:
        return False

wait_until(is_back, "worker1 is back", timeout=60, interval=0.05)
print("is back")
rpc.shutdown()
"""

WAITS = """
import os, signal
import torch.distributed.rpc as rpc
import weft
from beside import where

weft.init_rpc("driver", rank=0, world_size=int(os.environ["WORLD_SIZE"]))
print("pids:", *[rpc.rpc_sync(f"worker{rank}", where)[1] for rank in (1, 2)], flush=True)
signal.pause()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "beside.py").write_text(BESIDE)
    (tmp_path / "waiting.py").symlink_to(waiting.__file__)
    return tmp_path


def start(folder, program: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "program.py").write_text(program)
    return subprocess.Popen(
        [sys.executable, "-m", "weft.launch", *arguments],
        cwd=folder.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(("more", "status"), [([], 0), (["fails"], 3)])
def test_a_program_asks_its_workers(folder, more, status):
    path = str(folder / "program.py")
    launched = start(folder, PROGRAM, "--workers", "2", path, "--epochs", "3", *more)
    output, errors = launched.communicate(timeout=BOUND)
    assert launched.returncode == status, errors
    assert f"asks: ['1', '2'] {['--epochs', '3', *more]}" in output


def test_a_worker_that_was_killed_comes_back(folder):
    path = str(folder / "program.py")
    launched = start(folder, KILLS, "--workers", "1", "--restarts", "1", path)
    output, errors = launched.communicate(timeout=BOUND)
    assert launched.returncode == 0, errors
    assert "is back" in output
    assert "worker1 has ended with signal 9; it is started again" in errors


ENDS = """
import os, sys
import weft

weft.init_rpc("driver", rank=0, world_size=int(os.environ["WORLD_SIZE"]))
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("status", [0, 5])
def test_workers_say_in_a_line_that_the_program_has_ended(folder, status):
    launched = start(folder, ENDS, "--workers", "1", str(folder / "program.py"), str(status))
    _, errors = launched.communicate(timeout=BOUND)
    assert launched.returncode == status
    assert "Traceback" not in errors and "frame #" not in errors
    if status == 0:  # else the launcher kills the worker, perhaps before it says it
        said = "weft.worker: worker1 ends: the driver has ended without rpc.shutdown"
        assert errors.splitlines()[-1] == said, errors


UNDER_TORCHRUN = """
import os
import torch.distributed.rpc as rpc
import weft, weft.worker
from beside import where

if os.environ["RANK"] == "0":
    weft.init_rpc("driver", rank=0, world_size=int(os.environ["WORLD_SIZE"]))
    print("asks:", [rpc.rpc_sync(f"worker{rank}", where)[0] for rank in (1, 2)])
    rpc.shutdown()
else:
    weft.worker.main([])
"""


def test_torchrun_starts_driver_and_workers(folder):
    (folder / "program.py").write_text(UNDER_TORCHRUN)
    found = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "program.py"],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert found.returncode == 0, found.stderr
    assert "asks: ['1', '2']" in found.stdout


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_the_workers_end_with_the_program(folder, sent):
    path = str(folder / "program.py")
    launched = start(folder, WAITS, "--workers", "2", path)
    pids = [int(word) for word in launched.stdout.readline().split()[1:]]
    assert len(pids) == 2, launched.communicate(timeout=BOUND)
    if sent == signal.SIGTERM:
        launched.send_signal(sent)
    else:
        program = int(
            subprocess.run(
                ["pgrep", "-f", path, "-P", str(launched.pid)], capture_output=True, text=True
            ).stdout.split()[0]
        )
        os.kill(program, sent)
    launched.communicate(timeout=BOUND)
    assert launched.returncode == 128 + sent
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_worker_that_cannot_be_started_ends_all(folder, monkeypatch):
    popen, started = subprocess.Popen, []

    def two_only(*arguments, **options):
        if len(started) == 2:
            raise BlockingIOError("no more processes")
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(launch.subprocess, "Popen", two_only)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    (folder / "program.py").write_text(WAITS)
    with pytest.raises(BlockingIOError):
        launch.main(["--workers", "2", str(folder / "program.py")])
    try:
        assert [one.wait(BOUND) for one in started] == [-signal.SIGTERM, -signal.SIGKILL]
    finally:
        for one in started:
            one.kill()


def test_bad_arguments_end_with_one_line(folder):
    for arguments, words in (
        (["program.py"], "the following arguments are required: --workers"),
        (
            ["--workers", "0", "program.py"],
            "argument --workers: must be a positive number, got '0'",
        ),
        (["--workers", "1", "missing.py"], "no such file: missing.py"),
    ):
        launched = start(folder, PROGRAM, *arguments)
        _, errors = launched.communicate(timeout=BOUND)
        assert launched.returncode == 2
        assert words in errors.splitlines()[-1]


# What stands in for Slurm: one node, and each task a process.
SCONTROL = """#!/usr/bin/env bash
[[ "$*" == "show hostnames node[1-3]" ]] && printf '127.0.0.1\\nnode2\\nnode3\\n'
"""
SRUN = """#!/usr/bin/env bash
[[ "$1" == --kill-on-bad-exit=1 ]] || exit 64
shift
for ((rank = 1; rank < SLURM_NTASKS; rank++)); do SLURM_PROCID=$rank "$@" & done
SLURM_PROCID=0 "$@"
status=$?
wait
exit $status
"""


@pytest.mark.parametrize(("argument", "status"), [("one", 0), ("fails", 3)])
def test_under_slurm(folder, tmp_path_factory, argument, status):
    commands = tmp_path_factory.mktemp("bin")
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("python", python)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (folder / "program.py").write_text(PROGRAM)
    script = Path(__file__).parents[2] / "examples/pipeline_workers/slurm.sh"
    found = subprocess.run(
        [script, folder / "program.py", argument],
        cwd=commands,
        env={
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "SLURM_JOB_ID": str(random.randrange(10000)),
            "SLURM_JOB_NODELIST": "node[1-3]",
            "SLURM_NTASKS": "3",
        },
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert (found.returncode, found.stderr) == (status, "")
    assert found.stdout == f"asks: ['1', '2'] ['{argument}']\n"
    assert list(commands.glob(".weft-key-*")) == []
