"""``python -m weft.run script.py …``: runs a program written for TensorPipe on Weft.

In that process and its children Weft is the default of ``init_rpc``, and explicit
``TensorPipeRpcBackendOptions`` are translated. With ``--process-group`` the process-group backend
``gloo`` means weft as well. ``-m module`` works as with python itself. One line on stderr says what
Weft stands for; of torchrun's ranks only the first says it.
"""

from __future__ import annotations

import os
import pkgutil
import runpy
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import ModuleType

USAGE = "usage: python -m weft.run [--process-group] (script.py | -m module) [arguments …]"


def main(arguments: list[str]) -> None:
    """Runs the program named by ``arguments`` as ``__main__``."""
    process_group = arguments[:1] == ["--process-group"]
    arguments = arguments[1:] if process_group else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if arguments else 2)
    if problem := _problem(arguments):
        print(f"weft.run: {problem}\n{USAGE}", file=sys.stderr)
        raise SystemExit(2)
    _make_default(process_group)
    if "--process-group" in arguments and not process_group:
        _tell("the program gets --process-group; for weft.run it stands before the program")
    _run(arguments)


def _make_default(process_group: bool) -> None:
    os.environ["WEFT_AS_DEFAULT"] = "1"
    # `python -m weft.run` imports weft before this line, when the variable is not yet set; the
    # children of this process find it set.
    from weft._torch.patches import default

    default.make_default()
    if process_group:
        os.environ["WEFT_AS_PROCESS_GROUP"] = "1"
        default.make_default_process_group()
    group = "; gloo is weft" if process_group else ""
    _tell(f"init_rpc uses weft, not TensorPipe{group}")


def _tell(text: str) -> None:
    """Says it on stderr, once for all of torchrun's ranks."""
    if os.environ.get("RANK", "0") == "0":
        print(f"weft.run: {text}", file=sys.stderr, flush=True)


def _problem(arguments: list[str]) -> str:
    """Why that can be no program; empty: it can."""
    program = arguments[0]
    if program == "-m":
        return "" if len(arguments) > 1 else "-m needs a module"
    if program.startswith("-"):
        return f"unknown option {program}"
    return "" if os.path.exists(program) else f"no such file: {program}"


def _run(arguments: list[str]) -> None:
    """Runs the program as the ``__main__`` of this process until that ends, as python itself does.

    A worker whose main code has ended still serves the program's functions: until its threads end,
    or ``atexit`` calls ``rpc.shutdown``. (runpy's public functions take their ``__main__`` away before.)
    """
    main_module = sys.modules["__main__"] = ModuleType("__main__")
    program = arguments[0]
    sys.argv = arguments[1:] if program == "-m" else arguments
    if program == "-m":
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(arguments[1])
    elif pkgutil.get_importer(os.path.abspath(program)) is not None:  # a folder or a zip file
        sys.path.insert(0, os.path.abspath(program))
        runpy._run_module_as_main("__main__", alter_argv=False)
    else:
        sys.path.insert(0, os.path.dirname(os.path.realpath(program)))
        _run_file(os.path.abspath(program), main_module)


def _run_file(path: str, module: ModuleType) -> None:
    loader: SourceFileLoader | SourcelessFileLoader
    if path.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
    else:
        loader = SourceFileLoader("__main__", path)
        code = loader.source_to_code(loader.get_data(path), path)  # get_code leaves a .pyc file
    module.__file__ = path
    module.__loader__ = loader
    vars(module)["__cached__"] = None
    exec(code, vars(module))


if __name__ == "__main__":
    main(sys.argv[1:])
