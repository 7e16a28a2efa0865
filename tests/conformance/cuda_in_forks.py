"""CUDA in processes that are forked: torch must not have looked at the devices before.

Counting the devices is enough for torch to forbid CUDA in every child. So a child counts them, and
this process goes by what it said.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from multiprocessing.connection import Connection

import torch
import torch.utils._triton


def _tell_count(to: Connection) -> None:
    to.send(torch.cuda.device_count())


def prepare() -> None:
    """To be called before the suites are imported, which ask for devices."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_tell_count, args=(theirs,))
    child.start()
    count: int = ours.recv()
    child.join()
    torch.cuda.device_count = lambda: count
    torch.cuda.is_available = lambda: count > 0
    # It asks for a device's properties, in each test's process, before the ranks are forked.
    torch.utils._triton.has_triton = lambda: False


def end_if_races() -> None:
    """In a rank: the emulated CUDA (tests/emulated_cuda) says so at exit only, which a fork skips."""
    try:
        findings = ctypes.CDLL(None).emulatedCudaFindings()
    except AttributeError:
        return
    if findings:
        os._exit(66)
