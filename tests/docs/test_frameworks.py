"""The programs of docs/guide/frameworks run as their pages say, where the framework is installed.

Weft's own environment has none of them: `pip install lightning accelerate transformers torch_geometric
torchrl "ray[train]"` in an environment with torch and Weft runs all.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "guide" / "frameworks"
BOUND = 400  # seconds: frameworks take long to import on a machine that does much else
pytestmark = pytest.mark.timeout(BOUND + 50)

# What a page needs, and what its program must print.
CASES = {
    "lightning": (["lightning"], r"2 ranks over weft: loss 0\.0"),
    "accelerate": (["accelerate"], r"2 ranks over weft: loss 0\.0"),
    "trainer": (["transformers", "accelerate"], r"2 ranks over weft: loss \d\.\d+"),
    "pyg": (["torch_geometric"], r"rank 1: all 100 rows are right: True"),
    "torchrl": (["torchrl"], r"256 frames from two workers over WeftAgent"),
    "ray": (["ray"], r"'backend': 'weft'"),
}


def listing(page: str) -> tuple[str, str]:
    """The file name and the text of a page's program."""
    text = (PAGES / f"{page}.md").read_text()
    found = re.search(r"```python\n# (\w+\.py)(.*?)```", text, re.DOTALL)
    assert found, page
    return found[1], f"# {found[1]}{found[2]}"


def command(page: str) -> list[str]:
    """The page's first command, with this interpreter, and a free port under torchrun."""
    text = (PAGES / f"{page}.md").read_text()
    line = re.search(r"```sh\n((?:torchrun|python) [^\n]+)\n", text)
    assert line, page
    program, *words = shlex.split(line[1])
    if program == "python":
        return [sys.executable, *words]
    return [sys.executable, "-m", "torch.distributed.run", f"--master-port={free_port()}", *words]


def run_all(commands: list[list[str]], folder: Path) -> list[str]:
    """Runs these at the same time; what they print, if all end well within the bound."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TCP_PORT": str(free_port())}
    environment["RAY_USAGE_STATS_ENABLED"] = "0"  # nothing leaves this machine
    processes = [
        subprocess.Popen(
            words,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for words in commands
    ]
    try:
        outputs = [process.communicate(timeout=BOUND)[0] for process in processes]
    finally:
        for process in processes:
            process.terminate()  # torchrun ends its ranks
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


@pytest.mark.parametrize("page", CASES)
def test_a_frameworks_program(page, tmp_path):
    packages, expected = CASES[page]
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    name, text = listing(page)
    (tmp_path / name).write_text(text)
    (output,) = run_all([command(page)], tmp_path)
    assert re.search(expected, output), output


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them, at 10.173.7.5 and 10.173.7.6."""
    names = tuple(f"weft-page-{os.getpid()}-{i}" for i in range(2))

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "c", "type", "veth", "peer", "c", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.173.7.{5 + number}/24", "dev", "c")
            ip("-n", name, "link", "set", "c", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not permitted here (root?): {error}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_torchrun_on_two_hosts(hosts, tmp_path):
    name, text = listing("torchrun")
    (tmp_path / name).write_text(text)
    page = (PAGES / "torchrun.md").read_text().replace("\\\n", "")
    lines = re.findall(r"^torchrun (--nnodes=2 .*)$", page, re.MULTILINE)
    assert len(lines) == 2
    commands = []
    for host, line in zip(hosts, lines, strict=True):
        words = shlex.split(line.replace("10.0.0.5", "10.173.7.5"))
        torchrun = [sys.executable, "-m", "torch.distributed.run", *words]
        commands.append(["ip", "netns", "exec", host, *torchrun])
    first, second = run_all(commands, tmp_path)
    for rank, output in enumerate((first, first, second, second)):
        assert re.search(rf"rank {rank} of 4: loss \d\.\d+, worker{(rank + 1) % 4} is", output)


def test_every_page_is_tested():
    """Slurm's and Kubernetes' are about files that tests/examples/test_cluster.py runs."""
    pages = {path.stem for path in PAGES.glob("*.md")}
    assert pages == {*CASES, "torchrun", "slurm", "kubernetes"}
