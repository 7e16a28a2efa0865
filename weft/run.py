"""``python -m weft.run script.py …``: runs a program written for TensorPipe on Weft.

In that process and its children Weft is the default of ``init_rpc``, and explicit
``TensorPipeRpcBackendOptions`` are translated. With ``--process-group`` the process-group backend
``gloo`` means weft as well. ``-m module`` works as with python itself. One line on stderr says what
Weft stands for; of torchrun's ranks only the first says it.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from importlib.machinery import ModuleSpec

USAGE = "usage: python -m weft.run [--process-group] (script.py | -m module) [arguments …]"


def main(arguments: list[str]) -> None:
    """Runs the program named by ``arguments`` as ``__main__``."""
    process_group = arguments[:1] == ["--process-group"]
    arguments = arguments[1:] if process_group else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        raise SystemExit(0 if arguments else 2)
    _check(arguments)
    os.environ["WEFT_AS_DEFAULT"] = "1"
    # `python -m weft.run` imports weft before this line, when the variable is not yet set; the
    # children of this process find it set.
    from weft._torch.patches import default

    default.make_default()
    if process_group:
        os.environ["WEFT_AS_PROCESS_GROUP"] = "1"
        default.make_default_process_group()
    if os.environ.get("RANK", "0") == "0":
        group = "; gloo is weft" if process_group else ""
        print(f"weft.run: init_rpc uses weft, not TensorPipe{group}", file=sys.stderr, flush=True)

    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(arguments)
    sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
    runpy.run_path(arguments[0], run_name="__main__")


def _check(arguments: list[str]) -> None:
    """Ends with one line where python itself would: an unknown option, or no such program."""
    program = arguments[0]
    problem = ""
    if program == "-m":
        sys.path.insert(0, os.getcwd())  # as python -m does
        problem = _problem_of_module(arguments[1]) if len(arguments) > 1 else "-m needs a module"
    elif program.startswith("-"):
        problem = f"unknown option {program}"
    elif not os.path.exists(program):
        problem = f"no such file: {program}"
    elif os.path.isdir(program) and not os.path.exists(os.path.join(program, "__main__.py")):
        problem = f"no __main__.py in the folder {program}"
    if problem:
        print(f"weft.run: {problem}\n{USAGE}", file=sys.stderr)
        raise SystemExit(2)


def _problem_of_module(module: str) -> str:
    """Why `module` cannot be run; empty if it can. The packages around it are imported, as by python."""
    spec = _spec(module) if all(module.split(".")) else None
    if spec is None:
        return f"no module named {module!r}"
    if spec.submodule_search_locations is not None and _spec(f"{module}.__main__") is None:
        return f"{module!r} is a package without a module __main__"
    return ""


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
