"""The site: every page is in its navigation, the references name everything, and mkdocs builds it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import weft
import weft.compat
import weft.pipe

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BOUND = 280  # seconds, for a machine that does much else


def mkdocs() -> str | None:
    """The mkdocs of this environment, or the one of `./dev docs`."""
    cache = Path(os.environ.get("WEFT_CACHE", Path.home() / ".cache" / "weft"))
    installed = sorted(str(path) for path in cache.glob("venv-docs-*/bin/mkdocs"))
    return shutil.which("mkdocs") or (installed or [None])[-1]


def test_the_navigation_has_every_page_once():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"([\w/]+\.md)$", nav, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_python_reference_has_every_public_name_once():
    page = (DOCS / "reference" / "python.md").read_text()
    listed = re.findall(r"^::: weft\.(\S+)$", page, re.MULTILINE)
    lazy = {"Pipe", "WithDevice"}  # weft.pipe's own
    expected = set(weft.__all__) - lazy - {"__version__"}
    for module in (weft.pipe, weft.compat):
        name = module.__name__.removeprefix("weft.")
        expected |= {f"{name}.{one}" for one in module.__all__}
    assert sorted(listed) == sorted(expected)


def test_the_headers_of_the_cpp_reference_exist():
    page = (DOCS / "reference" / "cpp.md").read_text()
    headers = re.findall(r"^<!-- header: (\S+) -->$", page, re.MULTILINE)
    assert {"jit_ops/weft.h", "pipe/pipe.h", "transport/endpoint.h"} <= set(headers)
    for header in headers:
        assert (ROOT / header).read_text().startswith("// "), f"{header} does not say what it is"


@pytest.mark.timeout(BOUND + 20)
def test_mkdocs_builds_it(tmp_path):
    """Strict: a page that is not in the navigation, and a link or an anchor that is not, are errors."""
    program = mkdocs()
    if program is None:
        pytest.skip("mkdocs is not installed here: ./dev docs installs it")
    done = subprocess.run(
        [program, "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site/reference/python/index.html").read_text()
    assert page.count("weft.publish") > 1  # the docstring, not the name alone
    assert "rpcSync" in (tmp_path / "site/reference/cpp/index.html").read_text()
    assert (tmp_path / "site/project/examples/cluster/jobset.yaml").exists()
