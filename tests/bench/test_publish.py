"""Figures that are published: what is put into a page, and where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import publish

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", publish.PAGES)
def test_the_pages_have_their_marks(tmp_path, name):
    page = publish.FOLDER / publish.PAGES[name]
    copy = tmp_path / page.name
    copy.write_text(page.read_text())
    assert publish.put(name, "| new |", tmp_path) == copy
    before, after = publish.marks(name)
    assert f"{before}\n\n| new |\n\n{after}\n" in copy.read_text()
    assert copy.read_text().startswith("# "), "what people wrote stays"
    publish.put(name, "| newer |", tmp_path)
    assert "| new |" not in copy.read_text()


@pytest.mark.parametrize("text", ["", "{before}", "{after}{before}", "{before}{before}{after}"])
def test_a_page_without_its_marks_is_not_changed(tmp_path, text):
    before, after = publish.marks("table")
    page = tmp_path / publish.PAGES["table"]
    page.write_text(text.format(before=before, after=after))
    with pytest.raises(ValueError, match="each once"):
        publish.put("table", "figures", tmp_path)
    assert page.read_text() == text.format(before=before, after=after)


def test_the_preface_says_on_what_and_what_that_allows():
    text = publish.preface("peers", "medians of five rounds", {"memcpy 1 MiB us": 1234.5})
    assert text.startswith("Written by `./dev bench peers --publish` on ")
    # Where a line ends depends on the machine's name and the date.
    unwrapped = " ".join(text.split())
    for words in ("medians of five rounds", "cores (", "Weft 0."):
        assert words in unwrapped
    assert text.endswith("| memcpy 1 MiB us | 1,234 |")
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "part"), [("table", ["--parts", "rpc-free"]), ("peers", ["--only", "ray"])]
)
def test_a_part_of_a_run_is_not_published(name, part):
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{name}", "--publish", *part],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 2
    assert f"--publish takes the whole run, without {part[0]}" in done.stderr
