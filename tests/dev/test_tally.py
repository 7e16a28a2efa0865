"""What fails once and passes alone is counted as passed, and stays in the list that a run ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TALLY = Path(__file__).resolve().parents[2] / "tools" / "tally.py"

TESTS = """
import pathlib, pytest

@pytest.mark.parametrize("text", ["a b", "c::d"])
def test_once(text):
    seen = pathlib.Path(__file__).with_name(text.replace(":", "_"))
    assert seen.exists() or seen.write_text("") is None and False

class TestOfAClass:
    def test_never(self):
        assert False

def test_always(): pass
"""


def tally(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", TALLY, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def pytest_in(folder: Path, *names: str) -> int:
    xml = folder / "run.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
               "--rootdir", folder, "-o", "junit_family=xunit1", f"--junitxml={xml}"]  # fmt: skip
    return subprocess.run(
        [*command, *names],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        timeout=60,
    ).returncode


def test_what_failed_can_be_run_again_by_name(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "test_some.py").write_text(TESTS)
    assert pytest_in(tmp_path) == 1
    failed = tally("failed", tmp_path / "run.xml").stdout.splitlines()
    assert failed == [
        "sub/test_some.py::test_once[a b]",
        "sub/test_some.py::test_once[c::d]",
        "sub/test_some.py::TestOfAClass::test_never",
    ]
    assert pytest_in(tmp_path, *failed[:2]) == 0
    assert pytest_in(tmp_path, failed[2]) == 1


def test_the_unsteady_are_listed_and_counted_as_passed(tmp_path):
    steady, unsteady = tmp_path / "cpp.json", tmp_path / "python.json"
    steady.write_text(json.dumps({"passed": 1, "failed": 0, "skipped": 2, "failures": []}))
    unsteady.write_text(json.dumps({"passed": 5, "failed": 1, "skipped": 0, "failures": ["a.b"]}))
    assert tally("sum", steady, unsteady).returncode == 1
    assert tally("unsteady", unsteady).returncode == 0
    done = tally("sum", steady, unsteady)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "UNSTEADY python: a.b: it failed once, and passed alone",
        "7 passed, 0 failed, 2 skipped",
    ]
