"""What the pages say must be so: links, commands, code, the environment table, the doctor."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/README.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_compile(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        ast.parse(block)


def test_commands_exist():
    usage = (ROOT / "tools/dev/usage.txt").read_text()
    for page in PAGES:
        for command in re.findall(r"\./dev ([a-z]+)", page.read_text()):
            assert command == "help" or re.search(rf"\b{command}\b", usage), (page.name, command)


def test_the_environment_page_is_the_table():
    from weft import env

    page = (ROOT / "docs/environment.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    expected = [
        (row.name, f"`{row.default}`" if row.default else "", row.meaning) for row in env.table()
    ]
    assert rows == expected


def test_the_doctor_is_content():
    run = subprocess.run(
        [sys.executable, "-m", "weft.doctor"], capture_output=True, text=True, timeout=110
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "two workers called each other" in run.stdout


def test_the_doctor_finds_a_bad_key_file(tmp_path, monkeypatch):
    from weft import _doctor_checks

    key = tmp_path / "key"
    key.write_text("short")
    key.chmod(0o600)
    monkeypatch.setenv("WEFT_AUTH_KEY_FILE", str(key))
    assert _doctor_checks.key_file()[0].level == "FAIL"
    key.write_text("ab" * 32)
    assert _doctor_checks.key_file()[0].level == "ok"
    key.chmod(0o666)
    assert _doctor_checks.key_file()[0].level == "FAIL"
