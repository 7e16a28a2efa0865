"""What importing does and does not do: the entry point, a broken Weft, threads, sockets, fork, exit.

Each test starts fresh interpreters, so that what another test imported does not matter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

from weft._version import VERSION

ROOT = Path(__file__).resolve().parents[2]
BOUND = 200  # seconds; importing torch takes long on a busy machine

pytestmark = pytest.mark.timeout(2 * BOUND + 20)


def python(code: str, *arguments: str, folder: Path | None = None, **environment: str | None):
    """Runs `code` in a fresh interpreter that must end well; its stdout and stderr."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith("WEFT_AS")}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for name, value in environment.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout, run.stderr


def test_the_entry_point_registers_weft():
    out, err = python(
        """
import sys
import torch
assert "weft" in sys.modules, "torch did not import weft"
import torch.distributed.rpc as rpc
assert "WEFT" in rpc.BackendType.__members__
from torch.distributed.rpc import BackendType
assert BackendType is rpc.backend_registry.BackendType
print(type(rpc.BackendType.TENSORPIPE).__name__)
"""
    )
    assert out == "BackendType\n"
    assert "weft" not in err


def broken_weft(folder: Path, code: str) -> str:
    """A package that takes Weft's place on the path, and fails in its C++ part."""
    package = folder / "weft"
    real = Path(importlib.util.find_spec("weft").origin).parent
    shutil.copytree(real, package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (package / "_C.py").write_text(code)
    entry = real.parent / "weft_autoload.py"
    (folder / "weft_autoload.py").write_text(entry.read_text())
    for info in real.parent.glob("weft-*.dist-info"):
        (folder / info.name).mkdir()
        for source in info.iterdir():
            (folder / info.name / source.name).write_text(source.read_text())
    return str(folder)


def test_a_broken_weft_leaves_torch_usable(tmp_path):
    path = broken_weft(tmp_path, "raise ImportError('undefined symbol: _ZN5torch')")
    out, err = python(
        """
import torch
import torch.distributed.rpc as rpc
assert "WEFT" not in rpc.BackendType.__members__
rpc.init_rpc("alone", rank=0, world_size=1)
print(rpc.rpc_sync("alone", torch.add, args=(torch.ones(1), 1)).item())
rpc.shutdown()
try:
    import weft
except ImportError as error:
    print(error)
""",
        folder=tmp_path,  # in the checkout's root Python would find its weft/ first
        PYTHONPATH=path,
    )
    assert out.startswith("2.0\n")
    assert "./dev build" in out and "undefined symbol" in out
    assert re.search(r"weft: not loaded: .*undefined symbol", err)


def test_another_torch_is_named_once_and_by_the_doctor(tmp_path):
    """One line, before anything is loaded: libraries made for another torch could also crash."""
    path = broken_weft(tmp_path, "raise SystemExit('loaded')")
    (tmp_path / "weft/_built_for.py").write_text('TORCH = "1.13"\n')
    says = f"Weft {VERSION}+torch1.13 needs torch 1.13, and torch 2."
    out, err = python(
        """
import torch, torch.distributed.rpc
print(torch.ones(1).item())
try:
    import weft
except ImportError as error:
    print(error)
""",
        folder=tmp_path,
        PYTHONPATH=path,
    )
    number, line = out.splitlines()
    assert number == "1.0"
    assert line.startswith(says) and "pip install 'torch==1.13.*'" in line
    assert err.count(says) == 1
    for flags in ((), ("-W", "ignore")):
        doctor = subprocess.run(
            [sys.executable, *flags, "-m", "weft.doctor"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=BOUND,
        )
        assert doctor.returncode == 1, doctor.stderr
        assert f"FAIL  {says}" in doctor.stdout


def test_an_entry_point_that_throws_leaves_torch_usable(tmp_path):
    path = broken_weft(tmp_path, "raise SystemError('anything')")
    code = "import torch, torch.distributed.rpc; print(torch.ones(1))"
    out, err = python(code, folder=tmp_path, PYTHONPATH=path)
    assert out == "tensor([1.])\n"
    assert "weft: not loaded: anything" in err


def test_importing_starts_no_thread_and_opens_no_socket():
    out, _ = python(
        """
import os
import torch
import torch.distributed  # what torch itself starts and opens is its own

def state():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return sorted(os.listdir("/proc/self/task")), sorted(l for l in links if "socket" in l or "anon" in l)

before = state()
import torch.distributed.rpc
import weft
import weft.options, weft.run
assert state() == before, (before, state())
print("quiet")
"""
    )
    assert out == "quiet\n"


def test_fork_after_import():
    """As PyTorch's suites do: two forked children form a group."""
    out, _ = python(
        """
import os, sys
import torch
import torch.distributed.rpc as rpc
import weft

def work(rank):
    weft.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_timeout=30)
    value = rpc.rpc_sync(f"worker{1 - rank}", torch.add, args=(torch.ones(1), rank)).item()
    rpc.shutdown()
    assert value == 1 + rank

children = []
for rank in range(2):
    child = os.fork()
    if child == 0:
        try:
            work(rank)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    children.append(child)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert codes == [0, 0], codes
print("done")
"""
    )
    assert out == "done\n"


def test_an_agent_that_was_forgotten_does_not_disturb_the_exit():
    """The program ends without rpc.shutdown(): no hang, no crash, its exit code."""
    out, err = python(
        """
import torch, torch.distributed.rpc as rpc, weft
weft.init_rpc("alone", rank=0, world_size=1)
kept = rpc.remote("alone", torch.add, args=(torch.ones(1), 1))
print(kept.to_here().item())
"""
    )
    assert out == "2.0\n"
    assert "Traceback" not in err


def test_exit_with_a_call_in_flight():
    out, _ = python(
        """
import threading, torch, torch.distributed.rpc as rpc, weft

def slowly():
    threading.Event().wait(1)
    return 1

weft.init_rpc("alone", rank=0, world_size=1)
call = rpc.rpc_async("alone", slowly)
print("leaving")
"""
    )
    assert out == "leaving\n"


def test_unknown_environment_variables_are_named():
    code = """
import weft
from weft import _C
assert _C.unknown_environment() == ["WEFT_PEER_TIMOUT"], _C.unknown_environment()
names = [name for name, _, _ in _C.environment()]
assert len(names) == len(set(names)) and all(name.startswith("WEFT_") for name in names)
assert {"WEFT_AUTH_KEY_FILE", "WEFT_SOCKET_IFNAME", "WEFT_AS_DEFAULT"} <= set(names)
weft.init_rpc("alone", rank=0, world_size=1)
import torch.distributed.rpc as rpc
rpc.shutdown()
"""
    _, err = python(code, WEFT_PEER_TIMOUT="3")
    assert "WEFT_PEER_TIMOUT is not one that Weft knows" in err
    _, err = python(code.replace('["WEFT_PEER_TIMOUT"]', "[]"))
    assert "is not one that Weft knows" not in err


def test_a_misspelt_name_of_a_wish_for_weft_is_told_at_the_import():
    """A program that asked for Weft by it runs without, and no agent warns."""
    _, err = python("import torch.distributed.rpc, weft", WEFT_AS_DEFAUT="1", WEFT_OTHER="1")
    assert err.count("WEFT_AS_DEFAUT is not one that Weft knows") == 1
    assert "WEFT_OTHER" not in err


# Every variable that takes one of a few words.
WORDS = {
    "WEFT_ENCRYPTION": ("ON", "auto, on or off"),
    "WEFT_LOG_LEVEL": ("verbose", "error, warning, info or debug"),
    "WEFT_OTHER_USERS": ("true", "0 or 1"),
    "WEFT_REQUEST_POLICY": ("scripted", "('any', 'registered', 'script')"),
    "WEFT_SHARED_MEMORY": ("yes", "0 or 1"),
    "WEFT_TCP_CONNECTIONS": ("3", "1 or 2"),
    "WEFT_UNIX_SOCKET": ("no", "0 or 1"),
}
AT_THE_IMPORT = ("WEFT_AS_DEFAULT", "WEFT_AS_PROCESS_GROUP")


def test_words_that_a_variable_does_not_take_are_refused():
    """Both ways of joining, for one variable after the other, in one process."""
    code = """
import json, os, sys, tempfile
import torch.distributed as dist
import weft

def refused(join, variable, value, words):
    try:
        join()
    except (RuntimeError, ValueError) as error:
        text = str(error)
        assert words in text and value in text, text
        assert variable in text, text
    else:
        raise AssertionError(f"{variable}={value} was taken")

for variable, (value, words) in json.loads(sys.argv[1]).items():
    os.environ[variable] = value
    case = variable, value, words
    meet = dict(init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
    refused(lambda: weft.init_rpc("alone", **meet), *case)
    if variable != "WEFT_REQUEST_POLICY":  # of RPC alone
        refused(lambda: dist.init_process_group("weft", **meet), *case)
    del os.environ[variable]
"""
    python(code, json.dumps(WORDS))


def test_every_variable_of_a_few_words_is_checked():
    source = (ROOT / "transport/base/environment.h").read_text()
    names = dict(re.findall(r"(k\w+) = \"(WEFT_\w+)\"", source))
    checked = {names[name] for name in re.findall(r"\{(k\w+), \{\"", source)}
    assert checked | {"WEFT_REQUEST_POLICY"} == {*WORDS, *AT_THE_IMPORT}


@pytest.mark.parametrize("load", ["import weft", "import torch.distributed.rpc"])
@pytest.mark.parametrize("variable", AT_THE_IMPORT)
def test_a_misspelt_wish_for_weft_is_not_passed_over(variable, load):
    """Also where torch loads Weft by itself, since the program would run on TensorPipe or gloo."""
    code = f"""
try:
    {load}
except Exception as error:
    while error.__cause__ is not None:
        error = error.__cause__
    assert "{variable} must be 0 or 1, got 'yes'" in str(error), error
else:
    raise AssertionError("{variable}=yes was taken")
"""
    python(code, **{variable: "yes"})


def test_the_library_needs_no_python():
    """What a C++ program links: no libpython and no libtorch_python, directly or through others."""
    out, _ = python("import weft; print(weft.library_path())")
    library = out.strip()
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    names = re.findall(r"NEEDED.*\[(.+)\]", needed.stdout)
    assert "libtorch_cpu.so" in names and "libc10.so" in names
    assert not [name for name in names if "python" in name or "cuda" in name or "uv" in name], names
    symbols = subprocess.run(
        ["readelf", "--dyn-syms", "-W", library], capture_output=True, text=True, check=True
    ).stdout
    undefined = [line.split()[-1] for line in symbols.splitlines() if " UND " in line]
    assert not [name for name in undefined if name.startswith(("Py", "_Py", "uv_"))]
    # And nothing of the libuv inside it is shown to others.
    assert not re.search(r"(?<! UND )\buv_\w+$", symbols, re.MULTILINE)
