"""CUDA tensors that go through host memory: sent in chunks while they are copied, small ones together."""

from __future__ import annotations

import contextlib
import ctypes
import threading

import pytest
import torch
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup, metric
from devices import BOTH, EACH, SECOND, need_two
from emulation import EMULATION, WITHOUT_IPC, refuses_ipc
from test_rpc import (
    GATES,
    KEPT,
    Gate,
    MiB,
    behind_a_gate,
    chain,
    counted,
    many,
    open_gate,
    total,
)
from test_rpc_failures import limit_memory, without_memory
from waiting import wait_until

WAYS = [
    {"WEFT_UNIX_SOCKET": "0"},
    {"WEFT_SHARED_MEMORY": "0"},
    pytest.param(WITHOUT_IPC, marks=refuses_ipc),
]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: next(iter(way)))
def group(request):
    with CudaGroup(request.param) as group:
        yield group
        group.end()


def numbered(count: int, device: str | int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32, device=device)


def large_and_small() -> None:
    """Late on side streams; sizes that are no multiple of a chunk; what is in host memory between."""
    side = [torch.cuda.Stream(device) for device in BOTH]
    sizes = [9 * MiB + 1, 5, 100, 40_000, 2 * MiB, 0, 13 * MiB - 3]
    with torch.cuda.stream(side[0]), torch.cuda.stream(side[1]):
        sent = []
        for n, size in enumerate(sizes):
            sent += [chain(numbered(size, BOTH[n % 2])), numbered(MiB, "cpu") + n]
        back = rpc.rpc_sync("worker1", many, args=(sent,))
        found = [tensor.cpu() for tensor in back]
    for n, size in enumerate(sizes):
        assert back[2 * n].device.index == (BOTH[n % 2] if size else back[2 * n].device.index)
        assert torch.equal(found[2 * n], chain(numbered(size, "cpu")) + 2 * n)
        assert torch.equal(found[2 * n + 1], numbered(MiB, "cpu") + n + 2 * n + 1)


def test_large_and_small_tensors(seeded):
    staged = seeded[0].call(metric, "bytes_staged")
    seeded[0].call(large_and_small)
    assert seeded[0].call(metric, "bytes_staged") >= staged + 4 * 24 * MiB


def overwritten_at_once() -> None:
    for step in range(3):
        x = chain(torch.full((10 * MiB,), float(step), device="cuda:0"))
        call = rpc.rpc_async("worker1", total, args=(x,))
        x.zero_()
        assert call.wait() == chain(torch.tensor(float(step))).item() * 10 * MiB


def test_arguments_may_be_overwritten_once_a_call_is_sent(seeded):
    seeded[0].call(overwritten_at_once)


def at_once() -> None:
    x = [torch.full((3 * MiB,), float(n), device=BOTH[n % 2]) for n in range(4)]
    calls = [rpc.rpc_async("worker1", total, args=(x[n % 4],)) for n in range(12)]
    small = rpc.rpc_async("worker1", total, args=(torch.ones(3, device=SECOND),))
    assert [call.wait() for call in calls] == [(n % 4) * 3.0 * MiB for n in range(12)]
    assert small.wait() == 3


def test_many_large_calls_at_once(group):
    group[0].call(at_once)


# What is behind a gate holds up nobody else.


def wait_for_a_gate() -> None:
    """The streams that programs use go on meanwhile."""
    wait_until(lambda: GATES, "a gate is shut")
    for device in EACH:
        torch.cuda.default_stream(device).synchronize()


def others_go_on(*devices: int) -> None:
    """Calls with tensors, small and large."""
    for device in devices:
        for count in (1000, 3 * MiB):
            x = counted(device, count)
            assert rpc.rpc_sync("worker1", total, args=(x,)) == count * (count - 1) / 2


def late_answer() -> None:
    x = counted(0)
    call = rpc.rpc_async("worker1", behind_a_gate, args=(x,))
    rpc.rpc_sync("worker1", wait_for_a_gate)
    others_go_on(SECOND)  # on the gate's device they come after it, as all calls of one caller do
    assert not call.done()
    assert rpc.rpc_sync("worker1", open_gate)
    assert torch.equal(call.wait().cpu(), torch.arange(1000.0) + 1)


@pytest.mark.skipif(EMULATION is None, reason="calls the emulation's library")
@need_two("calls of one caller follow one another on a device")
def test_a_late_answer_holds_up_nobody(group):
    """Neither the answering host nor its other streams wait for it."""
    group[0].call(late_answer)


def late_argument() -> None:
    with torch.cuda.stream(torch.cuda.Stream(0)):
        x = counted(0) + 1
        gate = Gate(0)
        sent = threading.Thread(target=send_late, args=(x, torch.cuda.current_stream(0)))
        sent.start()
    others_go_on(*EACH)
    assert "late" not in KEPT
    gate.opened.set()
    sent.join()
    assert KEPT.pop("late") == 1000 * 1001 / 2
    assert gate.in_time


def send_late(x: torch.Tensor, stream: torch.cuda.Stream) -> None:
    with torch.cuda.stream(stream):
        KEPT["late"] = rpc.rpc_sync("worker1", total, args=(x,))


@pytest.mark.skipif(EMULATION is None, reason="calls the emulation's library")
def test_a_late_argument_holds_up_its_own_call_only(group):
    group[0].call(late_argument)


# The receiver copies what has come while the rest is on the way.

ARRIVED: list[float] = []


def note(x: torch.Tensor) -> None:
    ARRIVED.append(x.double().sum().item())


def send_but_one_chunk(elements: int) -> None:
    x = numbered(elements, "cuda:0")
    torch.cuda.synchronize(0)
    EMULATION.emulatedCudaHoldCopy(ctypes.c_long(7))
    KEPT["call"] = threading.Thread(target=rpc.rpc_sync, args=("worker1", note, (x,)))
    KEPT["call"].start()


def release() -> None:
    EMULATION.emulatedCudaHoldCopy(ctypes.c_long(0))
    KEPT.pop("call").join()


def copies_made() -> int:
    EMULATION.emulatedCudaCopies.restype = ctypes.c_ulong
    return EMULATION.emulatedCudaCopies()


def has_copied(before: int) -> bool:
    """A piece, sooner than the silence of a link on which a chunk is late has it made again."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: copies_made() > before, "one is copied", timeout=2)
    assert not ARRIVED
    return copies_made() > before


def check_arrived(elements: int) -> None:
    assert [numbered(elements, "cpu").double().sum().item()] == ARRIVED
    ARRIVED.clear()


@pytest.mark.skipif(EMULATION is None, reason="only an emulated copy can be held back")
@pytest.mark.parametrize("way", WAYS[:2], ids=["two connections", "one"])
def test_a_receiver_copies_what_has_come(way):
    """Of twelve chunks the seventh is not there yet, so the call cannot have begun.

    The thread that calls writes. While the socket takes no more it waits for the next chunk, at last
    for the seventh, so with a slow receiver little comes: then it is tried again.
    """
    elements = 48 * MiB - 5
    with CudaGroup(way) as group:
        group[0].call(at_once)  # connects
        copied = False
        for _ in range(10):
            before = group[1].call(copies_made)
            group[0].call(send_but_one_chunk, elements)
            copied = group[1].call(has_copied, before)
            group[0].call(release)
            group[1].call(check_arrived, elements)
            if copied:
                break
        assert copied
        group.end()


# Copies and waits that fail.


def fail(what: str, number: int) -> None:
    getattr(EMULATION, f"emulatedCudaFail{what}")(ctypes.c_long(number))


def sums(tensors: list[torch.Tensor]) -> list[float]:
    return [tensor.sum().item() for tensor in tensors]


def few_copies() -> None:
    """One copy more than there are devices would fail."""
    gradients = [torch.full((256,), float(n), device=BOTH[n % 2]) for n in range(200)]
    for device in EACH:
        torch.cuda.synchronize(device)
    fail("Copy", len(EACH) + 1)
    try:
        assert rpc.rpc_sync("worker1", sums, args=(gradients,)) == [256.0 * n for n in range(200)]
    finally:
        fail("Copy", 0)


@pytest.mark.skipif(EMULATION is None, reason="only emulated copies can be counted")
def test_small_tensors_of_a_device_are_one_copy(group):
    group[0].call(few_copies)


def fails_only(what: str, number: int, why: str) -> None:
    x = torch.ones(32 * MiB, device="cuda:0")
    torch.cuda.synchronize(0)
    fail(what, number)
    try:
        with pytest.raises(RuntimeError, match=why):
            rpc.rpc_sync("worker1", total, args=(x,))
    finally:
        fail(what, 0)
    assert rpc.rpc_sync("worker1", total, args=(x,)) == 32 * MiB


@pytest.mark.skipif(EMULATION is None, reason="only an emulated copy can be made to fail")
@pytest.mark.parametrize("number", [1, 2, 5, 8])
def test_a_copy_that_fails_fails_its_call(group, number):
    group[0].call(fails_only, "Copy", number, "unknown error")


@pytest.mark.skipif(EMULATION is None, reason="only an emulated wait can be made to fail")
@pytest.mark.parametrize(
    ("number", "why"),
    [(1, "unknown error"), (2, "could not copy"), (5, "could not copy"), (9, "could not copy")],
)
def test_a_copy_that_fails_while_it_is_sent_fails_its_call(group, number, why):
    group[0].call(fails_only, "Wait", number, why)


def failing_answer(number: int) -> torch.Tensor:
    x = torch.ones(32 * MiB, device="cuda:0")
    torch.cuda.synchronize(0)
    fail("Wait", number)
    return x


def answer_fails() -> None:
    with pytest.raises(RuntimeError, match="could not copy"):
        rpc.rpc_sync("worker1", failing_answer, args=(3,))
    rpc.rpc_sync("worker1", fail, args=("Wait", 0))
    assert rpc.rpc_sync("worker1", failing_answer, args=(0,)).sum().item() == 32 * MiB


@pytest.mark.skipif(EMULATION is None, reason="only an emulated wait can be made to fail")
def test_a_copy_of_an_answer_that_fails_fails_its_call(group):
    group[0].call(answer_fails)


def receiver_fails(elements: int, number: int) -> None:
    x = numbered(elements, "cuda:0")
    expected = rpc.rpc_sync("worker1", total, args=(x,))
    rpc.rpc_sync("worker1", fail, args=("Copy", number))
    try:
        with pytest.raises(RuntimeError, match="unknown error"):
            rpc.rpc_sync("worker1", total, args=(x,))
    finally:
        rpc.rpc_sync("worker1", fail, args=("Copy", 0))
    assert rpc.rpc_sync("worker1", total, args=(x,)) == expected


@pytest.mark.skipif(EMULATION is None, reason="only an emulated copy can be made to fail")
@pytest.mark.parametrize(("elements", "number"), [(1000, 1), (8 * MiB, 1), (8 * MiB, 3)])
def test_a_copy_that_fails_at_the_receiver_fails_the_call_only(group, elements, number):
    """Of a short message, of the first piece of a long one, and of a piece in its middle."""
    group[0].call(receiver_fails, elements, number)


def test_no_memory_at_the_receiver_fails_the_call_only(group):
    group[1].call(limit_memory, 10 << 20)
    group[0].call(without_memory)
    group[1].call(limit_memory, None)
    group[0].call(at_once)


def send_to_a_stopped_worker() -> None:
    x = torch.zeros(64 * MiB, device="cuda:0")
    KEPT["call"] = rpc.rpc_async("worker1", total, args=(x,), timeout=0)


def has_failed() -> None:
    with pytest.raises(RuntimeError, match="worker1"):
        KEPT["call"].wait()


def test_a_worker_that_dies_while_chunks_are_sent():
    with CudaGroup({"WEFT_UNIX_SOCKET": "0"}) as group:
        group[0].call(at_once)
        group[1].stop()
        group[0].call(send_to_a_stopped_worker)
        group[1].kill()
        group[0].call(has_failed)
        group.end(graceful=False)
