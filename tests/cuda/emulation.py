"""The emulated CUDA runtime, where that is what torch calls (tests/emulated_cuda)."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch


def _find() -> ctypes.CDLL | None:
    """The emulated runtime, where that is what torch calls."""
    try:
        runtime = ctypes.CDLL("libcudart.so.13")
        runtime.emulatedCudaFindings.restype = ctypes.c_ulong
    except (OSError, AttributeError):
        return None
    return runtime


EMULATION = _find() if torch.cuda.is_available() else None

#: Workers to which CUDA refuses IPC handles.
WITHOUT_IPC = {"EMULATED_CUDA_IPC": "0"}
refuses_ipc = pytest.mark.skipif(
    EMULATION is None, reason="IPC can be refused on emulated devices only"
)


def seed(delays: int) -> None:
    """Chooses the sequence of this process's streams' delays; a GPU's cannot be chosen."""
    if EMULATION:
        EMULATION.emulatedCudaSeed(ctypes.c_ulong(delays))


def findings() -> int:
    """The races and uses of freed memory that this process has seen so far."""
    return EMULATION.emulatedCudaFindings() if EMULATION else 0


def copy_late(to: torch.Tensor, source: torch.Tensor) -> None:
    """Copies between tensors of a device; an emulated one takes a second."""
    if EMULATION:
        EMULATION.emulatedCudaHoldCopy(ctypes.c_long(1))
    to.copy_(source)
    if EMULATION:
        threading.Timer(1.0, EMULATION.emulatedCudaHoldCopy, [ctypes.c_long(0)]).start()
