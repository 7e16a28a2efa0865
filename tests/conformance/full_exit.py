"""A forked rank that ends as a user's process does. Needs nothing of torch."""

from __future__ import annotations

import ctypes
import multiprocessing
from typing import Any

_ForkProcess = multiprocessing.get_context("fork").Process


class FullExitProcess(_ForkProcess):
    """Forks like multiprocessing's own, but does not end in `os._exit`.

    The interpreter is finalized (atexit handlers, modules, threads that still run) and the C library's
    `exit` runs the static destructors: what a spawned rank does too, without 6 s of imports first.
    """

    def _bootstrap(self, *args: Any, **kwargs: Any) -> int:
        code: int = super()._bootstrap(*args, **kwargs)
        ctypes.pythonapi.Py_Exit(ctypes.c_int(code))
        raise AssertionError("Py_Exit returned")
