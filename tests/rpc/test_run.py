"""`python -m weft.run` and WEFT_AS_DEFAULT: programs written for TensorPipe, unmodified."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import textwrap
import zipapp

import pytest
from ports import free_port

BOUND = 90

PROGRAM = """
import os
import sys

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp


def agent():
    return type(rpc.api._get_current_rpc_agent()).__name__


def run(rank, how):
    options = None
    if how == "options":
        options = rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=3, rpc_timeout=17, device_maps={f"worker{1 - rank}": {"cpu": "cpu"}}
        )
    backend = rpc.BackendType.TENSORPIPE if how == "backend" else None
    rpc.init_rpc(f"worker{rank}", backend, rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        print("agents:", agent(), rpc.rpc_sync("worker1", agent))
        print("timeout:", rpc.get_rpc_timeout())
        info = rpc.api._get_current_rpc_agent().get_debug_info()
        print("threads:", info["agent.thread_pool_size"])
    rpc.shutdown()


if __name__ == "__main__":
    print("argv:", sys.argv[1:], "name:", __name__)
    mp.spawn(run, args=(sys.argv[1],), nprocs=2, join=True)
"""


def start(folder, command: list[str], **environment: str) -> subprocess.CompletedProcess:
    variables = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=BOUND,
    )


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def test_without_it_the_program_runs_on_tensorpipe(program):
    run = start(program, ["program.py", "plain"])
    assert run.returncode == 0, run.stderr
    assert "agents: TensorPipeAgent TensorPipeAgent" in run.stdout


@pytest.mark.parametrize(
    ("command", "environment", "how"),
    [
        (["-m", "weft.run", "program.py"], {}, "plain"),
        (["-m", "weft.run", "-m", "program"], {}, "options"),
        (["program.py"], {"WEFT_AS_DEFAULT": "1"}, "backend"),
    ],
    ids=["script", "module-with-options", "variable-with-backend"],
)
def test_with_it_on_weft_and_so_do_its_children(program, command, environment, how):
    run = start(program, [*command, how, "--flag"], **environment)
    assert run.returncode == 0, run.stderr
    assert f"argv: ['{how}', '--flag'] name: __main__" in run.stdout
    assert "agents: WeftAgent WeftAgent" in run.stdout
    if how == "options":
        assert "timeout: 17.0" in run.stdout
        assert "threads: 3" in run.stdout


def test_the_programs_exit_code_and_errors_are_its_own(tmp_path):
    (tmp_path / "fails.py").write_text(
        textwrap.dedent(
            """
            import sys
            if sys.argv[1] == "exit":
                sys.exit(7)
            raise KeyError("of the program")
            """
        )
    )
    assert start(tmp_path, ["-m", "weft.run", "fails.py", "exit"]).returncode == 7
    run = start(tmp_path, ["-m", "weft.run", "fails.py", "raise"])
    assert run.returncode == 1
    assert "KeyError: 'of the program'" in run.stderr


def test_usage(tmp_path):
    run = start(tmp_path, ["-m", "weft.run"])
    assert run.returncode == 2
    assert "usage: python -m weft.run" in run.stdout + run.stderr
    assert start(tmp_path, ["-m", "weft.run", "--help"]).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--proces-group", "x.py"], "unknown option --proces-group"),
        (["no_such_file.py"], "no such file: no_such_file.py"),
        (["-m"], "-m needs a module"),
    ],
)
def test_a_wrong_command_is_told_in_a_line(tmp_path, arguments, says):
    run = start(tmp_path, ["-m", "weft.run", *arguments])
    assert run.returncode == 2
    assert f"weft.run: {says}" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    "form",
    [
        ["-m", "no_such_module"],
        ["-m", "package.no_such_module"],
        ["-m", "package"],
        ["-m", "math"],
        ["-m", ".relative"],
        ["package"],
    ],
    ids=" ".join,
)
def test_a_program_that_is_none_ends_as_under_python(tmp_path, form):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    plain = start(tmp_path, form)
    run = start(tmp_path, ["-m", "weft.run", *form])
    assert (plain.returncode, run.returncode) == (1, 1)
    assert run.stderr.endswith(plain.stderr), run.stderr


WHAT_IT_IS = """
import os
import sys

print(__name__, __file__, __package__, __cached__, type(__loader__).__name__)
print(__spec__ and __spec__.name, sys.argv, sys.path[0])
print(sys.modules["__main__"].__dict__ is globals())
"""


@pytest.mark.parametrize(
    "form",
    [["p.py"], ["p.pyc"], ["link.py"], ["-m", "p"], ["-m", "folder"], ["folder"], ["p.zip"]],
    ids=" ".join,
)
def test_a_program_is_what_it_is_under_python(tmp_path, form):
    (tmp_path / "folder").mkdir()
    for name in ("p.py", "folder/__main__.py"):
        (tmp_path / name).write_text(WHAT_IT_IS)
    (tmp_path / "link.py").symlink_to("folder/__main__.py")
    py_compile.compile(str(tmp_path / "p.py"), str(tmp_path / "p.pyc"))
    zipapp.create_archive(tmp_path / "folder", tmp_path / "p.zip")
    plain = start(tmp_path, [*form, "argument"])
    run = start(tmp_path, ["-m", "weft.run", *form, "argument"])
    assert (plain.returncode, run.returncode) == (0, 0), plain.stderr + run.stderr
    assert run.stdout == plain.stdout


SERVES_ON = """
import atexit
import threading

import torch.distributed.rpc as rpc


def double(x):
    return 2 * x


def at_exit():
    print("at exit:", rpc.rpc_sync("solo", double, args=(3,)))
    rpc.shutdown()


def after_main():
    threading.main_thread().join()
    print("in a thread:", rpc.rpc_sync("solo", double, args=(2,)))


rpc.init_rpc("solo", rank=0, world_size=1)
atexit.register(at_exit)
threading.Thread(target=after_main).start()
"""


@pytest.mark.parametrize("form", [["serves.py"], ["-m", "serves"]], ids=" ".join)
def test_its_functions_are_found_after_its_main_code_has_ended(tmp_path, form):
    (tmp_path / "serves.py").write_text(SERVES_ON)
    run = start(tmp_path, ["-m", "weft.run", *form])
    assert run.returncode == 0, run.stderr
    assert run.stdout == "in a thread: 4\nat exit: 6\n", run.stderr


OWN_PROCESS = """
import torch.distributed.rpc as rpc

rpc.init_rpc("solo", rank=0, world_size=1)
print("agent:", type(rpc.api._get_current_rpc_agent()).__name__)
rpc.shutdown()
"""


def test_the_program_itself_runs_on_weft_not_only_its_children(tmp_path):
    (tmp_path / "solo.py").write_text(OWN_PROCESS)
    done = start(tmp_path, ["-m", "weft.run", "solo.py"])
    assert done.returncode == 0, done.stderr
    assert "agent: WeftAgent" in done.stdout
    assert done.stderr.count("weft.run: init_rpc uses weft, not TensorPipe\n") == 1
    done = start(tmp_path, ["-m", "weft.run", "--process-group", "solo.py", "--process-group"])
    assert done.returncode == 0, done.stderr
    assert "the program gets" not in done.stderr
    says = "weft.run: init_rpc uses weft, not TensorPipe; gloo is weft\n"
    assert done.stderr.count(says) == 1


def test_an_option_that_the_program_gets_in_place_of_weft_run_is_told(tmp_path):
    (tmp_path / "prints.py").write_text("import sys; print(sys.argv[1:])")
    done = start(tmp_path, ["-m", "weft.run", "prints.py", "--process-group"])
    assert (done.returncode, done.stdout) == (0, "['--process-group']\n"), done.stderr
    says = "weft.run: the program gets --process-group; for weft.run it stands before the program\n"
    assert done.stderr.count(says) == 1
