"""The bar of a build, from what Bazel prints, on a terminal and in a file."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "progress.py"

# As Bazel prints them; before each, the seconds that have passed.
TALK = [
    (0, "Starting local Bazel server and connecting to it...\n"),
    (1, "Loading: 0 packages loaded\n"),
    (1, "Analyzing: 3 targets (12 packages loaded, 0 targets configured)\n"),
    (2, "[2 / 10] checking cached actions\n"),
    (5, "[10 / 1,210] Compiling transport/base/a.cpp; 1s processwrapper-sandbox\n"),
    (65, "[210 / 1,210] Compiling jit_ops/call/calls.cpp; 20s\n"),
    (70, "INFO: From Compiling x.cpp:\n"),
    (70, "x.cpp:3:1: warning: unused variable 'y'\n"),
    (305, "[1,010 / 1,210] Linking libweft.so; 3s\n"),
    (360, "INFO: Elapsed time: 360.4s, Critical Path: 30s\n"),
    (360, "INFO: Build completed successfully, 1210 total actions\n"),
]


class Screen(io.StringIO):
    """stderr, as a terminal or as a file."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture
def show(monkeypatch):
    """Runs the tool over lines with their times; what it has written."""
    spec = importlib.util.spec_from_file_location("progress", TOOL)
    progress = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(progress)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def run(talk: list[tuple[int, str]], terminal: bool) -> str:
        def lines():
            for now[0], line in talk:
                yield line

        screen = Screen(terminal)
        monkeypatch.setattr(progress.sys, "stdin", lines())
        monkeypatch.setattr(progress.sys, "stderr", screen)
        progress.main()
        return screen.getvalue()

    return run


def test_a_file_gets_a_line_now_and_then(show):
    lines = show(TALK, terminal=False).splitlines()
    assert lines == [
        "[weft] ####.................... 210 of 1210  about 5 minutes left",
        "x.cpp:3:1: warning: unused variable 'y'",
        "[weft] ####################.... 1010 of 1210  about a minute left",
        "[weft] the build took 360 s",
    ]


def test_a_terminal_gets_one_line_that_is_written_again(show):
    text = show(TALK, terminal=True)
    bar, warning, again, end, rest = text.split("\n")
    assert "\r[weft] ####.................... 210 of 1210  about 5 minutes left" in bar
    assert warning == "x.cpp:3:1: warning: unused variable 'y'"
    assert again.startswith("\r[weft] ####################.... 1010 of 1210")
    assert (end, rest) == ("[weft] the build took 360 s", "")
    assert "Analyzing" not in text and "INFO" not in text


def test_a_build_with_nothing_to_do_says_nothing(show):
    assert show([(0, "INFO: Analyzed 3 targets\n"), (1, "INFO: Elapsed time: 0.9s\n")], False) == ""


def test_errors_are_shown_as_they_are(show):
    error = "ERROR: /x/BUILD.bazel:3:1: Compiling a.cpp failed: (Exit 1)\n"
    assert show([(1, error)], terminal=False) == error
