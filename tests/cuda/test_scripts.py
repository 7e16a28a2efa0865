"""TorchScript over RPC with CUDA tensors: functions, and what a worker publishes.

torch's interpreter makes futures without devices, so what orders the streams behind its results is
Weft's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup, metric, wait_until_lent, wait_until_returned
from devices import BOTH, FIRST, OTHER_CUDA, SECOND
from emulation import WITHOUT_IPC, refuses_ipc, seed
from torch import Tensor, nn

import weft

EXPECTED = torch.arange(1000.0) * 2 + 1


@torch.jit.script
def affine(x: Tensor) -> Tensor:
    return x * 2 + 1


@torch.jit.script
def call_affine(x: Tensor) -> Tensor:
    return rpc.rpc_sync("worker1", affine, (x,))


@torch.jit.script
def two_of(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return y * 2 + 1, x * 2 + 1


@torch.jit.script
def affine_later(x: Tensor) -> torch.jit.Future[Tensor]:
    return rpc.rpc_async("worker0", affine, (x,))


later = rpc.functions.async_execution(affine_later)


@torch.jit.script
def forked(x: Tensor) -> torch.jit.Future[Tensor]:
    """The fork computes in another thread; what it is given may still be computed then."""
    y = x
    for _ in range(4):
        y = y * 1
    return torch.jit.fork(affine, y)


by_a_fork = rpc.functions.async_execution(forked)


@torch.jit.script
def affine_before_a_wait(x: Tensor) -> Tensor:
    """The interpreter goes on in another thread than the one that has computed."""
    y = x * 2 + 1
    rpc.rpc_async("worker0", affine, (torch.ones(1),)).wait()
    return y


@torch.jit.script
def forked_before_a_wait(x: Tensor) -> torch.jit.Future[Tensor]:
    return torch.jit.fork(affine_before_a_wait, x)


by_a_fork_that_waits = rpc.functions.async_execution(forked_before_a_wait)


@torch.jit.script
def made_after_a_wait(x: Tensor) -> Tensor:
    """All of it is computed in the thread in which the interpreter goes on, on its streams."""
    rpc.rpc_async("worker0", affine, (torch.ones(1),)).wait()
    y = torch.arange(1000, dtype=torch.float32, device=x.device)
    for _ in range(4):
        y = y * 1
    return y * 2 + 1


# What workers run.


def counted(device: int = 0) -> Tensor:
    return torch.arange(1000, dtype=torch.float32, device=f"cuda:{device}")


def known() -> None:
    """Scripted functions are found by name: the callee must have imported this module."""


def same(x: Tensor, device: int = 0) -> None:
    assert x.device.index == device
    assert torch.equal(x.detach().cpu(), EXPECTED)


def functions() -> None:
    for _ in range(3):
        same(rpc.rpc_sync("worker1", affine, args=(counted(),)))
    same(call_affine(counted()))
    calls = [rpc.rpc_async("worker1", affine, args=(counted(BOTH[n % 2]),)) for n in range(8)]
    for n, call in enumerate(calls):
        same(call.wait(), BOTH[n % 2])
    first, second = rpc.rpc_sync("worker1", two_of, args=(counted(FIRST), counted(SECOND)))
    same(first, SECOND)
    same(second, FIRST)
    same(rpc.rpc_sync("worker0", affine, args=(counted(),)))


def of_rref(x: rpc.RRef) -> Tensor:
    return x.to_here() * 1


def references() -> None:
    there = [rpc.remote("worker1", affine, args=(counted(),)) for _ in range(4)]
    for rref in there:
        same(rref.to_here())
        same(rpc.rpc_sync("worker1", of_rref, args=(rref,)))
    same(rpc.remote("worker0", affine, args=(counted(),)).to_here())


def in_other_threads() -> None:
    for _ in range(3):
        for worker in ("worker0", "worker1"):
            same(rpc.rpc_sync(worker, affine_before_a_wait, args=(counted(),)))
            same(rpc.rpc_sync(worker, made_after_a_wait, args=(counted(),)))


def asynchronous() -> None:
    calls = [rpc.rpc_async("worker1", later, args=(counted(),)) for _ in range(4)]
    for call in calls:
        same(call.wait())
    same(rpc.remote("worker1", later, args=(counted(),)).to_here())


def of_forks() -> None:
    for function in (by_a_fork, by_a_fork_that_waits):
        calls = [rpc.rpc_async("worker1", function, args=(counted(),)) for _ in range(4)]
        for call in calls:
            same(call.wait())
        same(rpc.remote("worker1", function, args=(counted(),)).to_here())


def gradients() -> None:
    x = counted().requires_grad_()
    with dist_autograd.context() as context:
        y = rpc.rpc_sync("worker1", affine, args=(x,))
        dist_autograd.backward(context, [(y * 3).sum()])
        found = dist_autograd.get_gradients(context)[x]
        assert torch.equal(found.cpu(), torch.full((1000,), 6.0))


class Affine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1000,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + 1

    @torch.jit.export
    def nested(self, xs: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
        return {name: [x * self.weight + 1 for x in row] for name, row in xs.items()}


class Rows(nn.Module):
    """Treats rows independently."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + 1


def publish() -> None:
    module = Affine().to(OTHER_CUDA)
    weft.publish("scripted", torch.jit.script(module))
    weft.publish("plain", module)
    weft.publish("later", affine_later)
    weft.publish("batched", torch.jit.script(Rows()), batch=weft.Batch(4, 0.01))


def published(worker: str) -> None:
    """At the second device of the publisher, which is the first of the other worker."""
    device = FIRST if worker == "worker1" else SECOND
    for name in ("scripted", "plain", "later"):
        same(weft.call(f"{worker}/{name}", counted(device)), device)
        calls = [weft.call_async(f"{worker}/{name}", counted(device)) for _ in range(3)]
        for call in calls:
            same(call.wait(), device)
        same(weft.call_remote(f"{worker}/{name}", counted(device)).to_here(), device)
    back = weft.call(f"{worker}/scripted", {"a": [counted(device)] * 2}, method="nested")
    for x in back["a"]:
        same(x, device)


def batches() -> None:
    """Each request comes on streams of its own, and one thread runs several."""
    calls = [weft.call_async("worker1/batched", counted().reshape(10, 100)) for _ in range(10)]
    for call in calls:
        same(call.wait().reshape(1000))


def published_gradients(name: str) -> None:
    x = counted().requires_grad_()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [(weft.call(f"worker1/{name}", x) * 3).sum()])
        found = dist_autograd.get_gradients(context)[x]
        assert torch.equal(found.cpu(), torch.full((1000,), 6.0))


class Client(nn.Module):
    """A model that calls."""

    def forward(self, x: Tensor) -> Tensor:
        like: list[Tensor] = []
        args: list[Any] = [x]
        return torch.ops.weft.call("worker1", "scripted", args, like)

    @torch.jit.export
    def waits(self, x: Tensor) -> Tensor:
        like: list[Tensor] = []
        args: list[Any] = [x]
        later = torch.ops.weft.call_async("worker1", "scripted", args, like)
        return torch.jit._wait(later) * 1

    @torch.jit.export
    def fetches(self, x: Tensor) -> Tensor:
        like: list[Tensor] = []
        args: list[Any] = [x]
        there = torch.ops.weft.remote("worker1", "scripted", args, like)
        return torch.jit._wait(torch.ops.weft.fetch_async(there)) * 1


def from_a_script() -> None:
    client = torch.jit.script(Client())
    for _ in range(3):
        same(client(counted()))
        same(client.waits(counted()))
        same(client.fetches(counted()))
    (y,) = torch.ops.weft.call_tensors("worker1", "scripted", [counted()], [counted()])
    with pytest.raises(RuntimeError, match=r"on cuda:\d as tensor 0; `like` says .* on cpu"):
        torch.ops.weft.call_tensors("worker1", "scripted", [counted()], [torch.empty(1000)])
    same(y)


def remote_modules() -> None:
    for make in (weft.RemoteModule, torch.distributed.nn.RemoteModule):
        module = make(f"worker1/{OTHER_CUDA}", Affine)
        for _ in range(2):
            same(module.forward(counted()))
            same(module.forward_async(counted()).wait())


def scripted_remote_modules() -> None:
    """TorchScript gets tensors of the CPU."""
    for make in (Affine, scripted_affine):
        module = weft.RemoteModule(f"worker1/{OTHER_CUDA}", make)
        same(module(counted()))
        scripted = torch.jit.script(module)
        for _ in range(3):
            assert torch.equal(scripted(counted()).detach(), EXPECTED)


def scripted_affine() -> torch.jit.ScriptModule:
    return torch.jit.script(Affine())


def remote_gradients() -> None:
    module = weft.RemoteModule(f"worker1/{OTHER_CUDA}", Affine)
    x = counted().requires_grad_()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [(module(x) * 3).sum()])
        found = dist_autograd.get_gradients(context)[x]
        assert torch.equal(found.cpu(), torch.full((1000,), 6.0))
        (there,) = module.remote_parameters()
        assert there.owner_name() == "worker1"


# The tests.


def ready(group: CudaGroup) -> CudaGroup:
    for rank in range(2):
        group[rank].call(known)
        group[rank].call(wait_until_lent, f"worker{1 - rank}")
        group[rank].call(publish)
    return group


@pytest.fixture(scope="module")
def group():
    with CudaGroup() as group:
        yield ready(group)
        group.end()


def run(group: CudaGroup, function, *arguments) -> None:
    """At worker 0; no tensor goes through host memory."""
    staged = [worker.call(metric, "bytes_staged") for worker in group]
    group[0].call(function, *arguments)
    assert [worker.call(metric, "bytes_staged") for worker in group] == staged
    for worker in group:
        worker.call(wait_until_returned)


@pytest.mark.parametrize(
    "function", [functions, references, asynchronous, of_forks, in_other_threads, gradients]
)
def test_functions(seeded, function):
    run(seeded, function)


@pytest.mark.parametrize("worker", ["worker1", "worker0"])
def test_published(seeded, worker):
    run(seeded, published, worker)


def test_batches(seeded):
    run(seeded, batches)


@pytest.mark.parametrize("name", ["scripted", "plain"])
def test_gradients_of_what_is_published(seeded, name):
    run(seeded, published_gradients, name)


def test_calls_from_a_script(seeded):
    run(seeded, from_a_script)


@pytest.mark.parametrize("function", [remote_modules, scripted_remote_modules, remote_gradients])
def test_remote_modules(seeded, function):
    run(seeded, function)


def test_first_calls_whose_results_are_late():
    """What the interpreter has not compiled yet is answered while its kernels run."""
    with CudaGroup({"EMULATED_CUDA_MAX_DELAY_US": "20000"}) as group:
        ready(group)
        for function in (functions, references, asynchronous, of_forks, in_other_threads):
            run(group, function)
        group.end()


def test_results_of_forks_through_host_memory():
    """The copies are the callee's own, so the emulation sees there whether they wait for the forks."""
    with CudaGroup({"WEFT_SHARED_MEMORY": "0"}) as group:
        for rank in range(2):
            group[rank].call(known)
        for delays in range(20):
            group.all(seed, delays)
            group[0].call(of_forks)
        group.end()


@pytest.mark.parametrize(
    "environment",
    [pytest.param(WITHOUT_IPC, marks=refuses_ipc), {"WEFT_SHARED_MEMORY": "0"}],
)
def test_through_host_memory(environment):
    with CudaGroup(environment) as group:
        for rank in range(2):
            group[rank].call(known)
            group[rank].call(publish)
        for delays in range(3):
            group.all(seed, delays)
            for function in (functions, references, asynchronous, of_forks, batches, from_a_script):
                group[0].call(function)
            group[0].call(published, "worker1")
        assert group[0].call(metric, "bytes_staged") > 0
        group.end()
