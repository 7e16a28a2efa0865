"""CUDA tensors in RPC, between two processes of one host whose device maps are crossed where there
are two devices.

A forgotten event shows as a wrong number, because streams are late, or as a finding of the emulation,
which makes its process end with 66."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup, metric, wait_until_lent, wait_until_returned
from devices import BOTH, EACH, FIRST, SECOND, need_two
from emulation import EMULATION, WITHOUT_IPC, refuses_ipc, seed
from waiting import wait_until

MiB = 1 << 18  # elements of four bytes


def lent_by(group: CudaGroup, function: Callable[..., None], *arguments: object) -> int:
    """The bytes that worker 0 lends while it runs this; none of its tensors are staged."""
    staged, lent = group[0].call(metric, "bytes_staged"), group[0].call(metric, "bytes_lent")
    group[0].call(function, *arguments)
    assert group[0].call(metric, "bytes_staged") == staged
    for worker in group:
        worker.call(wait_until_returned)
    return group[0].call(metric, "bytes_lent") - lent


# What workers run.


def counted(device: int, count: int = 1000) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32, device=f"cuda:{device}")


def chain(x: torch.Tensor, steps: int = 4) -> torch.Tensor:
    """Late work on the current stream."""
    for _ in range(steps):
        x = x * 2 + 1
    return x


def on(*devices: int) -> Callable[[list[torch.Tensor]], None]:
    def check(tensors: list[torch.Tensor]) -> None:
        assert [tensor.device.index for tensor in tensors] == list(devices)

    return check


def swapped(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Computed on the callee's streams, and sent while that goes on."""
    assert (x.device.index, y.device.index) == (SECOND, FIRST)
    return [chain(y), chain(x)]


def crossed_maps() -> None:
    for _ in range(3):
        side = [torch.cuda.Stream(device) for device in BOTH]
        with torch.cuda.stream(side[0]), torch.cuda.stream(side[1]):
            x, y = chain(counted(FIRST)), chain(counted(SECOND))
            back = rpc.rpc_sync("worker1", swapped, args=(x, y))
            on(SECOND, FIRST)(back)
            sums = [total(tensor) for tensor in back]
        expected = total(chain(chain(torch.arange(1000.0))))
        assert sums == [expected, expected]


def test_arguments_and_results_are_awaited_on_their_streams(seeded):
    assert lent_by(seeded, crossed_maps) >= 3 * 2 * 4000


def overwritten() -> None:
    """Once a call has returned, its arguments may be written to."""
    for step in range(4):
        x = torch.full((MiB // 4,), float(step), device="cuda:0")
        kept = rpc.rpc_sync("worker1", keep, args=(x,))
        x.zero_()
        assert kept == step
        assert rpc.rpc_sync("worker1", kept_sum) == step * (MiB // 4)


def keep_both(x: torch.Tensor, y: torch.Tensor) -> None:
    KEPT["both"] = [x, y]
    KEPT["events"] = [torch.cuda.current_stream(t.device).record_event() for t in (x, y)]


def both_sums() -> list[float]:
    for tensor, event in zip(KEPT["both"], KEPT["events"], strict=True):
        torch.cuda.current_stream(tensor.device).wait_event(event)
    return [tensor.sum().item() for tensor in KEPT["both"]]


def overwritten_on_both_devices() -> None:
    """The copies of both devices are done, not only those of the first."""
    for step in range(6):
        x = torch.full((1000,), float(step), device="cuda:0")
        y = torch.full((1000,), float(step), device="cuda:1")
        rpc.rpc_sync("worker1", keep_both, args=(x, y))
        x.zero_()
        y.zero_()
        assert rpc.rpc_sync("worker1", both_sums) == [step * 1000.0] * 2


@need_two("the copies of each are awaited")
def test_arguments_on_two_devices_may_be_overwritten_too():
    """Without crossed maps no stream of one device waits for the other's."""
    with CudaGroup(maps={0: 0, 1: 1}) as group:
        group[0].call(wait_until_lent, "worker1")
        for delays in range(20):
            group.all(seed, delays)
            lent_by(group, overwritten_on_both_devices)
        group[1].call(forget)
        group.end()


def made(n: int) -> torch.Tensor:
    return torch.full((5000,), float(n), device="cuda:0")


def answers_of_their_own() -> None:
    """The callee lets go of each answer when it is sent, and makes the next ones in its memory."""
    calls = [rpc.rpc_async("worker1", made, args=(n,)) for n in range(150)]
    assert [call.wait().sum().item() for call in calls] == [5000.0 * n for n in range(150)]


def test_an_answer_lives_until_it_is_copied(seeded):
    lent_by(seeded, answers_of_their_own)


KEPT: dict[str, torch.Tensor] = {}


def keep(x: torch.Tensor) -> int:
    KEPT["x"] = x
    KEPT["event"] = torch.cuda.current_stream(x.device).record_event()
    KEPT["count"] = KEPT.get("count", -1) + 1
    return KEPT["count"]


def kept_sum() -> float:
    x = KEPT["x"]
    torch.cuda.current_stream(x.device).wait_event(KEPT["event"])
    return x.sum().item()


def forget() -> None:
    KEPT.clear()


def test_arguments_may_be_overwritten_when_the_call_has_returned(seeded):
    lent_by(seeded, overwritten)
    seeded[1].call(forget)


def double(x: torch.Tensor) -> torch.Tensor:
    return chain(x)


def to_itself() -> None:
    x = chain(counted(0))
    back = rpc.rpc_sync("worker0", double, args=(x,))
    assert back.device.index == 0
    assert torch.equal(back.cpu(), chain(chain(torch.arange(1000.0))))
    later = [rpc.rpc_async("worker0", torch.add, args=(back, n)) for n in range(4)]
    for n, future in enumerate(later):
        assert torch.equal(future.wait().cpu(), chain(chain(torch.arange(1000.0))) + n)


def test_calls_to_itself_are_ordered_too(seeded):
    assert lent_by(seeded, to_itself) == 0


def itself_by_its_map() -> None:
    x, y = chain(counted(FIRST)), chain(counted(SECOND))
    back = rpc.rpc_sync("worker0", swapped, args=(x, y))
    on(SECOND, FIRST)(back)
    expected = chain(chain(torch.arange(1000.0)))
    for tensor in back:
        assert torch.equal(tensor.cpu(), expected)


@need_two("a map of one leaves tensors where they are")
def test_calls_to_itself_follow_the_map_for_its_name():
    with CudaGroup(own_map={0: 1, 1: 0}) as group:
        for delays in range(20):
            group.all(seed, delays)
            group[0].call(itself_by_its_map)
        group.end()


def many(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor + index for index, tensor in enumerate(tensors)]


def many_small_tensors() -> None:
    devices = [BOTH[n % 2] for n in range(150)]
    sent = [torch.full((n % 7 + 1,), float(n), device=devices[n]) for n in range(150)]
    back = rpc.rpc_sync("worker1", many, args=(sent,))
    for n, tensor in enumerate(back):
        assert tensor.device.index == devices[n]
        assert tensor.tolist() == [2.0 * n] * (n % 7 + 1)


def test_many_small_tensors(group):
    lent_by(group, many_small_tensors)


def many_sizes() -> None:
    """Late on side streams; from one number to 20 MiB."""
    sizes = [1, 1000, 5 * MiB - 3, 40_000]
    side = [torch.cuda.Stream(device) for device in BOTH]
    with torch.cuda.stream(side[0]), torch.cuda.stream(side[1]):
        sent = [chain(counted(BOTH[n % 2], size)) for n, size in enumerate(sizes)]
        back = rpc.rpc_sync("worker1", many, args=(sent,))
        found = [tensor.cpu() for tensor in back]
    for n, size in enumerate(sizes):
        assert back[n].device.index == BOTH[n % 2]
        assert torch.equal(found[n], chain(torch.arange(size, dtype=torch.float32)) + n)


def test_many_sizes(seeded):
    lent_by(seeded, many_sizes)


def strides_of(tensors: list[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tensor.stride() for tensor in tensors]


def same(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors


def views() -> None:
    base = torch.arange(600, device="cuda:0", dtype=torch.float32).reshape(20, 30)
    sent = [
        base.t(),
        base[3:7],
        base[:, 4:25],
        base[::2, ::3],
        base[::2, ::3].t(),
        base[:1].expand(5, 30),
        base[2, 2],
        base[:0],
        base.to(torch.int64).view(torch.uint8)[:, ::2],
        base.to(torch.bfloat16),
        base.reshape(2, 10, 5, 6).contiguous(memory_format=torch.channels_last),
    ]
    for there, here in zip(rpc.rpc_sync("worker1", same, args=(sent,)), sent, strict=True):
        assert there.dtype == here.dtype and there.device.index == 0
        assert torch.equal(there.cpu(), here.cpu())
    dense = [sent[0], sent[1], sent[10]]
    assert rpc.rpc_sync("worker1", strides_of, args=(dense,)) == strides_of(dense)


def test_views_and_layouts(group):
    lent_by(group, views)


def large() -> None:
    sent = [torch.full((64 * MiB,), 3.0, device="cuda:0"), torch.ones(MiB, device=SECOND)]
    first, second = rpc.rpc_sync("worker1", many, args=(sent,))
    assert first.device.index == 0 and first.numel() == 64 * MiB
    assert bool((first == 3).all()) and bool((second == 2).all())


def test_large_tensors(group):
    assert lent_by(group, large) == 65 * 4 * MiB


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def test_the_same_tensor_twice(group):
    lent_by(group, same_twice)


def same_twice() -> None:
    x = counted(SECOND)
    assert torch.equal(
        rpc.rpc_sync("worker1", twice, args=(x, x)).cpu(), torch.arange(0, 2000.0, 2)
    )


def multiplied(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return chain(x) * w


def gradients() -> None:
    x = chain(counted(0)).requires_grad_()
    w = torch.full((1000,), 3.0, device="cuda:0", requires_grad=True)
    with dist_autograd.context() as context:
        y = rpc.rpc_sync("worker1", multiplied, args=(x, w))
        assert y.requires_grad and y.device.index == 0
        dist_autograd.backward(context, [(chain(y)).sum()])
        found = dist_autograd.get_gradients(context)
        expected = chain(chain(torch.arange(1000.0)))
        assert torch.equal(found[w].cpu(), expected * 16)
        assert torch.equal(found[x].cpu(), torch.full((1000,), 16.0 * 16 * 3))


def test_distributed_autograd(seeded):
    lent_by(seeded, gradients)


def of_rref(x: rpc.RRef) -> torch.Tensor:
    return x.to_here() + 1


def references() -> None:
    x = chain(counted(0))
    there = rpc.remote("worker1", double, args=(x,))
    builtin = rpc.remote("worker1", torch.add, args=(x, 1))
    expected = chain(torch.arange(1000.0))
    assert there.to_here().device.index == 0
    assert torch.equal(there.to_here().cpu(), chain(expected))
    assert torch.equal(builtin.to_here().cpu(), expected + 1)
    mine = rpc.RRef(x)
    assert torch.equal(rpc.rpc_sync("worker1", of_rref, args=(mine,)).cpu(), expected + 1)
    assert torch.equal(rpc.rpc_sync("worker1", of_rref, args=(there,)).cpu(), chain(expected) + 1)
    assert torch.equal(there.rpc_sync().mul(2).cpu(), chain(expected) * 2)


def test_references(seeded):
    lent_by(seeded, references)


@rpc.functions.async_execution
def later(x: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """The result of a future, completed on another thread than the call's."""
    return rpc.rpc_async("worker0", double, args=(x,)).then(lambda future: chain(future.wait()))


def asynchronously() -> None:
    x = chain(counted(SECOND))
    futures = [rpc.rpc_async("worker1", later, args=(x,)) for _ in range(3)]
    futures.append(rpc.rpc_async("worker1", torch.neg, args=(x,)).then(lambda f: chain(f.wait())))
    expected = chain(torch.arange(1000.0))
    for future in futures[:3]:
        assert torch.equal(future.wait().cpu(), chain(chain(expected)))
    assert torch.equal(futures[3].wait().cpu(), chain(-expected))


def test_futures_carry_their_devices(seeded):
    lent_by(seeded, asynchronously)


class Held:
    """An object behind an RRef; the tensor that it gives is late."""

    def chained(self, x: torch.Tensor) -> torch.Tensor:
        return chain(x)

    def fails(self) -> None:
        raise ValueError("nothing is held")


def through_an_rref() -> None:
    held = rpc.remote("worker1", Held)
    x = counted(0)
    expected = chain(torch.arange(1000.0))
    calls = [held.rpc_async().chained(x) for _ in range(3)]
    for call in calls:
        assert torch.equal(call.wait().cpu(), expected)
    assert torch.equal(held.rpc_sync().chained(x).cpu(), expected)
    assert torch.equal(held.remote().chained(x).to_here().cpu(), expected)
    with pytest.raises(ValueError, match="nothing is held"):
        held.rpc_async().fails().wait()


def test_methods_through_an_rref(seeded):
    lent_by(seeded, through_an_rref)


def answers_before_their_callbacks() -> None:
    """Whoever adds a callback to a completed future runs it on streams of its own."""
    upstream = torch.futures.Future.then

    def then(self, callback):
        wait_until(self.done, "the future is completed")
        return upstream(self, callback)

    held, x = rpc.remote("worker1", Held), counted(0)
    torch.futures.Future.then = then
    try:
        back = held.rpc_async().chained(x).wait()
    finally:
        del torch.futures.Future.then
    assert torch.equal(back.cpu(), chain(torch.arange(1000.0)))


def test_answers_that_are_there_before_their_callbacks(seeded):
    lent_by(seeded, answers_before_their_callbacks)


class Gate:
    """Work of a stream that ends when the gate is opened, or after a while."""

    def __init__(self, device: int) -> None:
        self.opened = threading.Event()
        self.in_time = False
        self.passed = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._pass)
        stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
        assert EMULATION.cudaLaunchHostFunc(stream, self.passed, None) == 0

    def _pass(self, _: int) -> None:
        self.in_time = self.opened.wait(10)


GATES: list[Gate] = []


def behind_a_gate(x: torch.Tensor) -> torch.Tensor:
    result = x + 1
    GATES.append(Gate(x.device.index))
    return result


def open_gate() -> bool:
    """Whether that is what opened it."""
    gate = GATES.pop()
    gate.opened.set()
    for device in EACH:
        torch.cuda.synchronize(device)
    return gate.in_time


def late_answers(worker: str) -> None:
    """Neither the host nor the streams that programs use wait for what nobody waits for."""
    x = counted(0)
    call = rpc.rpc_async(worker, behind_a_gate, args=(x,))
    wait_until(call.done, "the call is answered")
    for device in EACH:
        torch.cuda.default_stream(device).synchronize()
    assert rpc.rpc_sync(worker, open_gate)
    assert call.wait().sum().item() == x.sum().item() + 1000


@pytest.mark.skipif(EMULATION is None, reason="calls the emulation's library")
@pytest.mark.parametrize("worker", ["worker0", "worker1"])
def test_a_late_answer_holds_up_nobody(group, worker):
    lent_by(group, late_answers, worker)


def numbers_in(x: torch.Tensor) -> list[float]:
    return x.cpu().unique().tolist()


def of_memory_that_is_given_back() -> None:
    """The driver gives new memory to the sender, perhaps with the handle of what it had before. Of
    calls at once the first closes all old memory before another opens new memory."""
    for step in range(1, 5):
        sent = [torch.full((12 * MiB,), step + n / 8, device="cuda:0") for n in range(8)]
        torch.cuda.synchronize(0)
        calls = [rpc.rpc_async("worker1", numbers_in, args=(x,)) for x in sent]
        assert [call.wait() for call in calls] == [[step + n / 8] for n in range(8)]
        wait_until_returned()
        del sent, calls
        torch.cuda.synchronize(0)
        torch.cuda.empty_cache()


def test_memory_that_is_given_back_to_the_driver(group):
    lent_by(group, of_memory_that_is_given_back)


def total(x: torch.Tensor) -> float:
    return x.double().sum().item()


def opens() -> int:
    """How often this process has opened another's memory."""
    EMULATION.emulatedCudaOpens.restype = ctypes.c_ulong
    return int(EMULATION.emulatedCudaOpens())


def sent_again() -> None:
    x = counted(0)
    opened = []
    for _ in range(4):
        assert rpc.rpc_sync("worker1", total, args=(x,)) == 1000 * 999 / 2
        wait_until_returned()
        opened.append(rpc.rpc_sync("worker1", opens))
    assert opened[0] > 0
    assert opened == opened[:1] * 4


@pytest.mark.skipif(EMULATION is None, reason="only emulated handles are counted")
def test_memory_that_is_known_is_not_opened_again(group):
    lent_by(group, sent_again)


# Where device memory cannot be shared.

ALL_OF_IT = [
    crossed_maps,
    to_itself,
    many_small_tensors,
    many_sizes,
    views,
    gradients,
    references,
    same_twice,
]


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        pytest.param(WITHOUT_IPC, "operation not supported", marks=refuses_ipc),
        ({"WEFT_SHARED_MEMORY": "0"}, "WEFT_SHARED_MEMORY is 0"),
        ({"WEFT_UNIX_SOCKET": "0"}, "not reached by a Unix socket"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_through_host_memory(environment, why):
    with CudaGroup(environment) as group:
        for delays in range(5):
            group.all(seed, delays)
            for function in ALL_OF_IT:
                group[0].call(function)
        assert group[0].call(metric, "bytes_staged") > 0
        group[0].call(wait_until_returned)
        said = [line for line in group[0].output().splitlines() if "through host memory" in line]
        assert len(said) == len(EACH) and all(why in line and "worker1" in line for line in said), (
            said
        )
        group.end()


@need_two("they have no access to each other")
def test_without_access_between_devices():
    with CudaGroup({"EMULATED_CUDA_PEER_ACCESS": "0"}) as group:
        group[0].call(wait_until_lent, "worker1")
        for delays in range(5):
            group.all(seed, delays)
            for function in ALL_OF_IT:
                lent_by(group, function)
        group.end()
