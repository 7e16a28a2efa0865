"""Calls with CUDA tensors that fail: their copy, the receiver's memory, an answer that comes too late."""

from __future__ import annotations

import ctypes
import threading

import pytest
import torch
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup, metric, wait_until_returned
from devices import FIRST, SECOND, need_two
from emulation import EMULATION
from test_rpc import MiB, counted, double, lent_by, many, same_twice, total
from waiting import wait_until


def fail_copy(number: int) -> None:
    """Counted from now on; 0: none."""
    EMULATION.emulatedCudaFailCopy(ctypes.c_long(number))


def receiver_fails() -> None:
    x = counted(0)
    rpc.rpc_sync("worker1", fail_copy, args=(1,))
    with pytest.raises(RuntimeError, match="unknown error"):
        rpc.rpc_sync("worker1", total, args=(x,))
    rpc.rpc_sync("worker1", fail_copy, args=(0,))
    assert rpc.rpc_sync("worker1", total, args=(x,)) == 1000 * 999 / 2


@pytest.mark.skipif(EMULATION is None, reason="only an emulated copy can be made to fail")
def test_a_copy_that_fails_at_the_receiver_fails_the_call_only(group):
    lent_by(group, receiver_fails)


def lends_first_device() -> bool:
    staged = metric("bytes_staged")
    rpc.rpc_sync("worker1", total, args=(counted(FIRST),))
    return metric("bytes_staged") == staged


def encoding_fails() -> None:
    """The first tensor is lent already when the second, whose device is not probed yet, cannot be
    copied to the host."""
    wait_until(lends_first_device, "the first device's tensors are lent")
    wait_until_returned()
    sent = [torch.ones(MiB, device="cuda:0"), torch.ones(MiB, device="cuda:1")]
    for device in (FIRST, SECOND):
        torch.cuda.synchronize(device)
    fail_copy(1)
    with pytest.raises(RuntimeError, match="unknown error"):
        rpc.rpc_sync("worker1", many, args=(sent,))
    fail_copy(0)
    wait_until_returned()
    assert [back.unique().tolist() for back in rpc.rpc_sync("worker1", many, args=(sent,))] == [
        [1],
        [2],
    ]


@pytest.mark.skipif(EMULATION is None, reason="only an emulated copy can be made to fail")
@need_two("one is probed, the other not")
def test_a_message_that_cannot_be_made_takes_back_what_it_lends():
    with CudaGroup() as group:
        group[0].call(encoding_fails)
        group.end()


def limit_memory(limit: int | None) -> None:
    """What this process may take, in bytes, of the device on which the other's tensors arrive."""
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(SECOND).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if limit is None else limit / whole, SECOND)


def without_memory() -> None:
    large = torch.zeros(32 * MiB, device="cuda:0")
    with pytest.raises(RuntimeError, match="out of memory"):
        rpc.rpc_sync("worker1", double, args=(large,))
    assert rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]


def test_no_memory_at_the_receiver_fails_the_call_only(group):
    group[1].call(limit_memory, 10 << 20)
    lent_by(group, without_memory)
    group[1].call(limit_memory, None)
    lent_by(group, same_twice)


TOO_LATE = threading.Event()


def late(x: torch.Tensor) -> torch.Tensor:
    assert TOO_LATE.wait(20)
    TOO_LATE.clear()
    return x


def let_late_end() -> None:
    TOO_LATE.set()


def too_late() -> None:
    lent = rpc.rpc_sync("worker1", metric, args=("bytes_lent",))
    with pytest.raises(RuntimeError, match="set timeout"):
        rpc.rpc_sync("worker1", late, args=(counted(0),), timeout=0.1)
    rpc.rpc_sync("worker1", let_late_end)
    answered = lambda: rpc.rpc_sync("worker1", metric, args=("bytes_lent",)) > lent  # noqa: E731
    wait_until(answered, "the answer is sent")


def test_an_answer_that_comes_too_late_is_returned(group):
    lent_by(group, too_late)
