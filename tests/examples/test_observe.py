"""The pictures of docs/guide/observe.md: each shows what a run of the example has done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example writes."""
    folder = tmp_path_factory.mktemp("pictures")
    command = [sys.executable, "-m", "examples.observe.pictures", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def lines(picture: Path, element: str = "text") -> list[str]:
    return [part.text or "" for part in ElementTree.parse(picture).iter(f"{SVG}{element}")]


def texts(picture: Path) -> str:
    return "\n".join(lines(picture))


def test_the_trace_shows_all_workers_and_the_calls(folder):
    shown = lines(folder / "trace.svg")
    for rank in range(3):
        assert any(line.startswith(f"trainer{rank}, ") for line in shown), shown
    calls = lines(folder / "trace.svg", "title")
    for rank in (1, 2):
        assert any(call.startswith(f"trainer{rank}.forward") for call in calls), calls


def test_the_terminal_shows_who_waits_for_whom(folder):
    shown = texts(folder / "top.svg")
    assert "weft.top" in shown
    assert shown.count("rank 0, all_reduce") == 2, shown


def test_the_hang_names_the_rank_and_what_it_does(folder):
    shown = texts(folder / "hang.svg")
    assert "all_reduce" in shown
    assert "rank 0" in shown
    assert "evaluate" in shown


def test_the_curves_are_those_of_the_slow_rank(folder):
    shown = texts(folder / "waits.svg")
    assert "for rank 1" in shown and "for rank 2" in shown
