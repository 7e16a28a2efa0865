"""``--publish``: a run's figures in docs/reference, between two marks of a page, with the machine's
limits beside them. What is outside of the marks is written by people, and stays.
"""

from __future__ import annotations

import os
import platform
import textwrap
import time
from importlib.metadata import version
from pathlib import Path

from bench.report import Figures

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
PAGES = {"table": "performance_table.md", "peers": "performance.md"}  # by the benchmark's name


def marks(name: str) -> tuple[str, str]:
    """What stands in the page before and after the figures of a benchmark."""
    return f"<!-- {name}: written by ./dev bench {name} --publish -->", f"<!-- end of {name} -->"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def preface(name: str, how: str, limits: Figures) -> str:
    """When, how and on what the figures were measured; what the machine itself allows."""
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    today = time.strftime("%d %B %Y").lstrip("0")
    text = (
        f"Written by `./dev bench {name} --publish` on {today}: {how}. The machine: {cores} cores "
        f"({_processor()}), {memory} GiB, Linux {platform.release()}; Python "
        f"{platform.python_version()}, torch {version('torch')}, Weft {version('weft')}."
    )
    rows = [f"| {limit} | {value:,.4g} |" for limit, value in limits.items()]
    table = "\n".join(("| limit of this machine | |", "|---|---|", *rows))
    return f"{textwrap.fill(text, 100, break_on_hyphens=False)}\n\n{table}"


def put(name: str, text: str, folder: Path = FOLDER) -> Path:
    """Puts the text between the benchmark's marks, in place of what is there; returns the page.

    Raises:
        ValueError: the page has not each mark once, in this order. It is not changed.
    """
    page = folder / PAGES[name]
    before, after = marks(name)
    old = page.read_text()
    head, found, rest = old.partition(before)
    _, ended, tail = rest.partition(after)
    if not (found and ended) or old.count(before) + old.count(after) != 2:
        raise ValueError(f"{page} must have `{before}` and then `{after}`, each once")
    page.write_text(f"{head}{before}\n\n{text.strip()}\n\n{after}{tail}")
    return page
