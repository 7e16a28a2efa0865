"""examples/cluster under what starts jobs: torchrun, Ray, and stand-ins for Slurm and Kubernetes."""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "examples" / "cluster"
BOUND = 280  # seconds, for a machine that does much else
pytestmark = pytest.mark.timeout(BOUND + 20)

QUIET = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}  # nothing leaves this machine

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install "ray[train]"'
)
needs_yaml = pytest.mark.skipif(
    importlib.util.find_spec("yaml") is None, reason="no YAML reader here: pip install pyyaml"
)


def run(command: list[str], folder: Path = ROOT, **environment: str) -> str:
    """What the command prints; it must end with status 0, within the bound."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **QUIET, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_under_torchrun_a_killed_rank_comes_back(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    torchrun += ["--max-restarts=1", f"--master-port={free_port()}"]
    program = ["-m", "examples.cluster.elastic", "--checkpoint", str(tmp_path / "model.pt")]
    output = run([*torchrun, *program, "--steps=120", "--kill-at=70"])
    assert "life 0: 2 ranks begin at step 0" in output
    assert "life 1: 2 ranks begin at step 60" in output
    assert "120 steps: " in output


@needs_ray
def test_ray_train_makes_a_group_of_weft():
    output = run([sys.executable, "-m", "examples.cluster.ray_train", "--steps=50"])
    assert "2 ranks over weft: loss 0.0" in output


@needs_ray
def test_ray_starts_a_killed_actor_again():
    port = f"--port={free_port()}"
    output = run([sys.executable, "-m", "examples.cluster.ray_actors", port])
    assert "server1/encoder is another process: True" in output
    assert "the same answer: True" in output


# Starts what srun would on the first of the nodes: torchrun for a job of one node.
SRUN = '#!/bin/sh\nshift\nexec "$@"\n'
SCONTROL = "#!/bin/sh\necho localhost\n"
TORCHRUN = '#!/bin/sh\nexec {python} -m torch.distributed.run "$@"\n'
PROGRAM = """
import os, torch, torch.distributed as dist, weft
dist.init_process_group("weft")
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print("ranks:", int(total), "key:", os.path.basename(os.environ.get("WEFT_AUTH_KEY_FILE", "")))
dist.destroy_process_group()
"""


def test_under_slurm(tmp_path):
    job = random.randrange(10000)
    stand_ins = {"srun": SRUN, "scontrol": SCONTROL, "torchrun": TORCHRUN}
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(text.format(python=sys.executable))
        (tmp_path / name).chmod(0o755)
    (tmp_path / "program.py").write_text(PROGRAM)
    job_environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NODELIST": "localhost",
        "SLURM_NNODES": "1",
    }
    output = run([str(CLUSTER / "slurm.sh"), "program.py"], tmp_path, **job_environment)
    assert f"ranks: 2 key: .weft-key-{job}" in output
    assert list(tmp_path.glob(".weft-key-*")) == []


@needs_yaml
def test_the_command_of_the_jobset(tmp_path):
    """What its two pods run, on this machine."""
    import yaml

    jobset, policy = yaml.safe_load_all((CLUSTER / "jobset.yaml").read_text())
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    name = f"{jobset['metadata']['name']}-workers-0-0.{jobset['metadata']['name']}"
    assert f"--master-addr={name}" in container["command"]
    assert policy["spec"]["ingress"][0]["ports"][0]["port"] == 29500
    (tmp_path / "train.py").write_text(PROGRAM)
    port, pods = free_port(), []
    for index in range(job["completions"]):
        words = " ".join(container["command"][1:])
        words = words.replace("$(JOB_COMPLETION_INDEX)", str(index))
        words = words.replace(name, "127.0.0.1").replace("29500", str(port))
        command = [sys.executable, "-m", "torch.distributed.run", *words.split()]
        pods.append(
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**os.environ, **QUIET},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [pod.communicate(timeout=BOUND)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    assert [pod.returncode for pod in pods] == [0, 0], outputs
    assert "ranks: 4" in outputs[0]
