"""./dev refuses what it does not know before it installs or builds anything, and installs things once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = Path(os.path.realpath(sys._base_executable))  # what a venv's python was made from
# As of a shell that is not `./dev shell`.
PATH = f"{BASE.parent}:/usr/local/bin:/usr/bin:/bin"


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**variables, "PATH": PATH, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("bogus", "unknown command: bogus (./dev help lists them)"),
        ("test bogus", "no part is called bogus; parts: all lint cpp"),
        ("test torch215", "WEFT_TORCH=2.15.0 ./dev test torch215"),
        ("test cpp bogus", "tests by their names: ./dev test PART -k bogus"),
        ("test -k", "-k wants the words that the tests' names contain"),
        ("bench bogus", "no benchmark is called bogus; there are: against collectives"),
        ("bench --against", "needs a revision (./dev bench --against main)"),
        ("bench --against no-such-revision", "no revision no-such-revision"),
        ("docs bogus", "./dev docs takes nothing, or serve; got: bogus"),
        ("wheel --al", "for example ./dev wheel --all 2.13 3.12; got: --al"),
        ("wheel --all 1.13", "1.13 is none of torch 2.11"),
        ("setup --force", "./dev setup takes no arguments, got: --force (./dev help)"),
        ("lint cpp", "./dev lint takes no arguments"),
        ("fmt x", "./dev fmt takes no arguments"),
        ("clean x", "./dev clean takes no arguments"),
        ("doctor x", "./dev doctor takes no arguments"),
        ("gpu-bundle x", "./dev gpu-bundle takes no arguments"),
    ],
)
def test_what_it_does_not_know_is_refused_with_a_hint(tmp_path, words, says):
    done = run("./dev", *words.split(), WEFT_CACHE=str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not done.stdout
    assert not list(tmp_path.iterdir()), "it began before it read its arguments"


def test_the_usage_has_every_command():
    cases = (ROOT / "dev").read_text().partition('case "$command" in')[2]
    commands = re.findall(r"^  ([a-z-]+)\)", cases, re.MULTILINE)
    usage = run("./dev").stdout
    assert len(commands) > 15
    for command in commands:
        assert re.search(rf"^  ([a-z]+, )?{command}\b", usage, re.MULTILINE), command


def test_a_part_for_which_there_is_no_time_is_named_and_counts_as_skipped():
    done = run("./dev", "test", "lint", WEFT_TEST_MINUTES="1")
    assert done.stdout.splitlines() == [
        "NOT RUN lint: it may take 10 minutes, and 0 of 1 are over (WEFT_TEST_MINUTES)",
        "0 passed, 0 failed, 1 skipped",
    ], done.stderr


# need_venv with an installation that takes no time; two lines if it installs, else one.
NEED_VENV = """
. tools/dev/common.sh
. tools/dev/venv.sh
venv_install() {
  echo installed
  mkdir -p "$VENV/bin"
  ln -sf "$BASE_PYTHON" "$PY"
  stamp "$VENV/.weft-stamp" "$1"
}
need_venv
echo "$VENV"
"""


def test_nothing_is_installed_again_inside_a_shell(tmp_path):
    """`./dev shell` has a venv's python first on the path; its base is the one that counts."""
    # A version of torch that is named leaves the checkout's .venv alone.
    place = {"WEFT_CACHE": str(tmp_path / "cache"), "WEFT_TORCH": "2.11.0"}
    first = run("bash", "-euo", "pipefail", "-c", NEED_VENV, **place)
    assert first.stdout.startswith("installed\n"), first.stderr
    inside = tmp_path / "inside"
    venv.create(inside, symlinks=True)
    shell = {"VIRTUAL_ENV": str(inside), "PATH": f"{inside}/bin:{PATH}"}
    again = run("bash", "-euo", "pipefail", "-c", NEED_VENV, **place, **shell)
    assert again.stdout == first.stdout.removeprefix("installed\n"), again.stderr


def test_the_front_page_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 110, f"README.md has {len(lines)} lines: details belong into docs/"
