"""``python -m weft.run script.py …``: runs a program written for TensorPipe on Weft.

In that process and its children Weft is the default of ``init_rpc``, and explicit
``TensorPipeRpcBackendOptions`` are translated. With ``--process-group`` the process-group backend
``gloo`` means weft as well. ``-m module`` works as with python itself. One line on stderr says what
Weft stands for; of torchrun's ranks only the first says it.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from types import CodeType, ModuleType
from typing import Any, NamedTuple

USAGE = "usage: python -m weft.run [--process-group] (script.py | -m module) [arguments …]"


class _Program(NamedTuple):
    """What becomes ``__main__``; a file has no spec, as under python itself."""

    path: str
    code: CodeType
    loader: Any
    spec: ModuleSpec | None


class _NoProgram(Exception):
    """The command line names nothing that can be run."""


def main(arguments: list[str]) -> None:
    """Runs the program named by ``arguments`` as ``__main__``."""
    process_group = arguments[:1] == ["--process-group"]
    arguments = arguments[1:] if process_group else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if arguments else 2)
    try:
        program = _find(arguments)
    except _NoProgram as problem:
        print(f"weft.run: {problem}\n{USAGE}", file=sys.stderr)
        raise SystemExit(2) from None
    own = arguments[2 if arguments[0] == "-m" else 1 :]
    _make_default(process_group)
    if "--process-group" in own and not process_group:
        _tell("the program gets --process-group; for weft.run it stands before the program")
    sys.argv = [program.path if arguments[0] == "-m" else arguments[0], *own]
    _run(program)


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


def _run(program: _Program) -> None:
    """Runs it as the ``__main__`` of this process until that ends, not only while its code runs.

    A worker whose main code has ended still serves the program's functions: until its threads end,
    or ``atexit`` calls ``rpc.shutdown``. (runpy takes its ``__main__`` away before.)
    """
    module = ModuleType("__main__")
    module.__file__ = program.path
    module.__loader__ = program.loader
    module.__spec__ = program.spec
    module.__package__ = program.spec.parent if program.spec else None
    vars(module)["__cached__"] = program.spec.cached if program.spec else None
    sys.modules["__main__"] = module
    exec(program.code, vars(module))


def _find(arguments: list[str]) -> _Program:
    """The program, with ``sys.path`` as python has it; raises where python itself would end."""
    program = arguments[0]
    if program == "-m":
        if len(arguments) == 1:
            raise _NoProgram("-m needs a module")
        sys.path.insert(0, os.getcwd())
        return _of_spec(_spec_of_module(arguments[1]))
    if program.startswith("-"):
        raise _NoProgram(f"unknown option {program}")
    if not os.path.exists(program):
        raise _NoProgram(f"no such file: {program}")
    path = os.path.abspath(program)
    folder = pkgutil.get_importer(path)  # or a zip file
    if folder is None:
        sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
        return _of_file(path)
    sys.path.insert(0, path)
    spec = folder.find_spec("__main__")
    if spec is None:
        raise _NoProgram(f"no __main__.py in {program}")
    return _of_spec(spec)


def _of_file(path: str) -> _Program:
    if path.endswith(".pyc"):
        compiled = SourcelessFileLoader("__main__", path)
        return _Program(path, compiled.get_code("__main__"), compiled, None)
    # get_code would leave a .pyc file beside the program.
    loader = SourceFileLoader("__main__", path)
    return _Program(path, loader.source_to_code(loader.get_data(path), path), loader, None)


def _of_spec(spec: ModuleSpec) -> _Program:
    code = spec.loader.get_code(spec.name) if spec.loader else None
    if code is None:
        raise _NoProgram(f"{spec.name!r} is not Python code")
    return _Program(spec.origin, code, spec.loader, spec)


def _spec_of_module(module: str) -> ModuleSpec:
    """Of what ``-m module`` runs. The packages around it are imported, as by python."""
    spec = _spec(module) if all(module.split(".")) else None
    if spec is None:
        raise _NoProgram(f"no module named {module!r}")
    if spec.submodule_search_locations is None:
        return spec
    spec = _spec(f"{module}.__main__")
    if spec is None:
        raise _NoProgram(f"{module!r} is a package without a module __main__")
    return spec


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # Of the module above `name`; what that one itself imports in vain is the program's error.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


if __name__ == "__main__":
    main(sys.argv[1:])
