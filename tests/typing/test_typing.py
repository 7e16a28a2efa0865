"""What type checkers say of a user's program, and whether the stubs of weft._C are the module's."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import weft
from weft.options import RpcBackendOptions, RpcOptions

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BOUND = 500  # seconds: mypy reads all of torch the first time

pytestmark = pytest.mark.timeout(BOUND + 60)


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=BOUND
    )


@functools.cache
def needs_mypy() -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")


@functools.cache
def needs_pyright() -> None:
    """The package `pyright` fetches the checker when it is first asked; Node comes with it."""
    if shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    if run("pyright", "--version", folder=HERE).returncode != 0:
        pytest.skip("pyright could not be fetched")


def test_the_program_uses_every_public_name():
    text = (HERE / "program.py").read_text()
    lazy = {"Pipe", "WithDevice"}  # weft.pipe's own
    unused = [n for n in weft.__all__ if not re.search(rf"\bweft\.{n}\b", text) and n not in lazy]
    assert not unused and all(name in text for name in lazy), unused


def test_the_program_runs():
    done = run(sys.executable, HERE / "program.py", folder=ROOT)
    assert done.returncode == 0, done.stderr


def mypy(program: Path, folder: Path) -> str:
    flags = ("--strict", "--cache-dir", os.path.abspath(folder / "cache"))
    code = "import sys; from mypy.__main__ import console_entry; console_entry()"
    return run(sys.executable, "-c", code, *flags, program, folder=folder).stdout


def test_mypy_strict(tmp_path):
    """Also: it finds a mistake in the options. One run of each, with one cache."""
    needs_mypy()
    assert "Success" in (said := mypy(HERE / "program.py", tmp_path)), said
    wrong = tmp_path / "wrong.py"
    wrong.write_text('import weft\nweft.init_rpc("me", rpc_timeuot=30)\n')
    assert 'Unexpected keyword argument "rpc_timeuot"' in mypy(wrong, tmp_path)
    wrong.write_text('import weft\nweft.init_rpc("me", max_calls_in_flight="4")\n')
    assert "incompatible type" in mypy(wrong, tmp_path)


def test_pyright(tmp_path):
    needs_pyright()
    shutil.copy(HERE / "program.py", tmp_path)
    done = run("pyright", "program.py", folder=tmp_path)
    assert "0 errors, 0 warnings" in done.stdout, done.stdout


def test_the_options_by_name_are_the_options():
    given = {name for name in RpcBackendOptions.__init__.__annotations__ if name != "return"}
    assert set(RpcOptions.__annotations__) == given
    for name, annotation in RpcOptions.__annotations__.items():
        of_class = RpcBackendOptions.__init__.__annotations__[name]
        assert annotation.__forward_arg__ == of_class, name


@pytest.mark.skipif(
    not torch.__version__.startswith("2.11."), reason="the stubs are written with torch 2.11"
)
def test_the_stubs_are_the_modules(tmp_path):
    needs_mypy()
    done = run(sys.executable, ROOT / "tools" / "stubs.py", tmp_path, folder=ROOT)
    assert done.returncode == 0, done.stderr
    for made in tmp_path.glob("*.pyi"):
        assert made.read_text() == (ROOT / "weft" / "_C" / made.name).read_text(), (
            f"weft/_C/{made.name} is not what the module has: ./dev shell -- python tools/stubs.py"
        )
    assert len(list(tmp_path.glob("*.pyi"))) == 2
