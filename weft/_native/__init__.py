"""Loads the shared objects, and says what to do when they can't be loaded."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from pathlib import Path

from weft import _version

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    torch = None  # _load says what to do


def library_path() -> str:
    """The path of ``libweft.so``, for ``torch.ops.load_library`` and for C++ linkers."""
    # Where this file is a link (tools/stage.py) the library is beside the link, else beside the file.
    beside = Path(os.path.abspath(__file__)).parents[1] / "libweft.so"
    return str(beside if beside.exists() else Path(__file__).resolve().parents[1] / "libweft.so")


def cmake_prefix_path() -> str:
    """For ``CMAKE_PREFIX_PATH``, so that ``find_package(weft)`` finds the installed wheel."""
    return str(Path(library_path()).parent)


@functools.cache
def load_cuda() -> bool:
    """Loads ``libweft_cuda.so``, where torch has CUDA and the machine a device.

    Returns:
        Whether it is there.
    """
    library = Path(library_path()).with_name("libweft_cuda.so")
    if not torch.cuda.is_available() or not library.exists():
        return False
    ctypes.CDLL(str(library))
    return True


def _load() -> str | None:
    """Loads the shared objects; returns why they cannot be loaded, in one line."""
    # Before the loader tries: another torch's libraries could also crash.
    if problem := _version.mismatch(torch.__version__ if torch else ""):
        return problem
    try:
        from torch.distributed import rpc  # noqa: F401  _C needs it loaded

        from weft import _C

        if getattr(_C, "__file__", None) is None:  # only the folder of its stubs is there
            raise ImportError("there is no _C.so")
    except ImportError as error:
        return (
            f"Weft's C++ part could not be loaded ({error}). In a checkout, run `./dev build` and "
            "start Python through `./dev shell -- python …`; otherwise, install Weft again."
        )
    return None


def tell_the_doctor(problem: str) -> None:
    """Ends ``python -m weft.doctor`` with why Weft cannot be loaded; in other programs does nothing."""
    # Python imports the package before the module that `-m` names: the word before the arguments.
    if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)].endswith("weft.doctor"):
        found = f"torch {torch.__version__}" if torch else "no torch"
        print(f"ok    Python {platform.python_version()}, {found}; Weft {_version.__version__}")
        print(f"FAIL  {problem}")
        sys.exit(1)


if _problem := _load():
    tell_the_doctor(_problem)
    raise ImportError(_problem)
