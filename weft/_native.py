"""Loads the shared objects, and says what to do when they can't be loaded."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

import torch
import torch.distributed.rpc

_HERE = Path(__file__).resolve().parent


def library_path() -> str:
    """The path of ``libweft.so``, for ``torch.ops.load_library`` and for C++ linkers."""
    beside = Path(os.path.abspath(__file__)).parent / "libweft.so"
    return str(beside if beside.exists() else _HERE / "libweft.so")


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


try:
    from weft import _C  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"Weft's C++ part could not be loaded ({error}). In a checkout, run `./dev build` and "
        "start Python through `./dev shell -- python …`; if Weft was installed as a wheel, it was "
        f"built for another torch than the {torch.__version__} found here: rebuild it with "
        "`./dev wheel`."
    ) from error

from weft._torch import op_docs  # noqa: E402  after the library, whose operators it describes

op_docs.install()
