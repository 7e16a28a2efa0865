"""What is in the wheel; and from CMake: find_package(weft) builds examples/cpp_inference, and it runs."""

from __future__ import annotations

import email
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import weft

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "cpp_inference"
BOUND = 500  # seconds for a step; two programs with torch's headers take one of the minutes in it

needs_cmake = pytest.mark.skipif(
    shutil.which("cmake") is None or shutil.which("make") is None,
    reason="there is no cmake or no make here (./dev setup installs both)",
)


def run(*command: str | Path, **environment: str) -> str:
    """What the command prints; a failure shows it."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, of what was built."""
    folder = tmp_path_factory.mktemp("wheel")
    built = Path(weft.library_path()).parent.parent  # where ./dev put what it built
    run(
        "bash",
        "-ec",
        ". tools/dev/wheel.sh; run_wheel",
        BUILD=str(folder / "build"),
        SITE=str(built),
        WEFT_ROOT=str(ROOT),
        WHEEL_DIST=str(folder),
        PY=sys.executable,
        TORCH_VERSION=torch.__version__.split("+")[0],
    )
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel) -> Path:
    """A folder as site-packages: the wheel, installed as a user's would be, beside torch."""
    site = wheel.parent / "site-packages"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel)
    (site / "torch").symlink_to(Path(torch.__file__).parent)
    return site


@pytest.mark.timeout(BOUND)
def test_the_wheel_has_what_it_promises(wheel):
    """Its tags, the libraries that it brings, their licences, what an index shows, the entry point."""
    spec = importlib.util.spec_from_file_location("make_wheel", ROOT / "tools/make_wheel.py")
    make_wheel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_wheel)
    version, python = weft.__version__, f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = rf"{python}-{python}-manylinux_2_\d+_{platform.machine()}"
    assert re.fullmatch(rf"weft-{re.escape(version)}-{tag}\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"weft-{version}.dist-info"
        tags, about, points = (
            archive.read(f"{info}/{name}").decode()
            for name in ("WHEEL", "METADATA", "entry_points.txt")
        )
    assert re.search(rf"^Tag: {tag}$", tags, re.MULTILINE)
    assert points == "[torch.backends]\nweft = weft_autoload:load\n"
    assert {"weft_autoload.py", "weft/py.typed", "weft/_C/__init__.pyi", "weft/_C.so"} <= set(names)
    # Each package that is said to be in it is, with its licence; torch's libraries are not.
    brought = {
        path.name.split(".so")[0] for path in map(Path, names) if path.parent.name == "weft.libs"
    }
    for package in make_wheel.BUNDLED:
        assert f"{info}/licenses/{package}" in names
        stem = re.sub(r"[\d.-]+$", "", package)  # libnl-route-3-200: libnl-route-3, beside a hash
        assert any(name.startswith(stem) for name in brought), (package, brought)
    assert not [name for name in brought if re.match("lib(torch|c10|cuda)", name)], brought
    assert {f"{info}/licenses/{text}" for text in ("LICENSE", "NOTICE")} <= set(names)
    headers = email.message_from_string(about)
    torch_minor = ".".join(torch.__version__.split(".")[:2])
    assert (headers["Name"], headers["Version"]) == ("weft", version)
    assert headers["License-Expression"].startswith("BSD-3-Clause AND ")
    assert headers["Requires-Dist"] == f"torch (=={torch_minor}.*)"
    assert headers["Requires-Python"] == f"==3.{sys.version_info.minor}.*"
    assert set(headers.get_all("License-File")) == {"LICENSE", "NOTICE", *make_wheel.BUNDLED}
    assert headers.get_payload() == (ROOT / "README.md").read_text()


def test_the_project_is_twenty_lines():
    text = (EXAMPLE / "CMakeLists.txt").read_text()
    assert len(text.splitlines()) <= 20


@needs_cmake
@pytest.mark.timeout(3 * BOUND)
def test_a_cmake_project_builds_and_runs_against_the_wheel(installed, tmp_path):
    python_path = {"PYTHONPATH": f"{installed}:{ROOT}", "PYTHONSAFEPATH": "1"}
    # As docs/guide/cpp.md says it; the installed package answers, not the checkout's.
    ask = "import weft; print(weft.cmake_prefix_path())"
    prefix = run(sys.executable, "-c", ask, **python_path).splitlines()[-1]
    assert prefix == str(installed / "weft")
    run("cmake", "-S", EXAMPLE, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", tmp_path, "--parallel", "2")
    libraries = run("ldd", tmp_path / "client")
    assert f"{installed}/weft/libweft.so" in libraries, libraries
    launch = ("-m", "examples.cpp_inference.launch", "--threads", "2", "--requests", "50")
    output = run(sys.executable, *launch, "--binaries", tmp_path, **python_path)
    for client in ("C++", "Python"):
        assert re.search(rf"{re.escape(client)} client, 2 threads: p50 \d+ us, p99 \d+ us", output)


@needs_cmake
def test_without_torch_beside_it_says_what_to_set(installed, tmp_path):
    alone = tmp_path / "alone"
    shutil.copytree(installed / "weft" / "share", alone / "weft" / "share")
    project = f"""cmake_minimum_required(VERSION 3.18)
project(p NONE)
find_package(weft REQUIRED PATHS {alone}/weft)
"""
    (tmp_path / "CMakeLists.txt").write_text(project)
    done = subprocess.run(
        ["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "b")],
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert done.returncode != 0
    assert "set WEFT_TORCH_ROOT" in " ".join(done.stderr.split())
