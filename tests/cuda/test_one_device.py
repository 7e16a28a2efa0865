"""What a machine with one GPU can run: two processes that share it, and a Pipe with the host beside it.

Most other tests need two devices."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup, metric, seed, wait_until_lent, wait_until_returned
from emulation import EMULATION
from pipe_models import MODES, WAYS
from test_pipe import check_training
from test_process_group import ONE_DEVICE
from test_rpc import MiB, chain, counted, double, many, multiplied

ENVIRONMENT = ONE_DEVICE if EMULATION else {}


@pytest.fixture(scope="module")
def group():
    with CudaGroup(ENVIRONMENT, maps={0: 0}) as group:
        for rank in range(2):
            group[rank].call(wait_until_lent, f"worker{1 - rank}")
        yield group
        group.end()


# What workers run.


def there_and_back() -> None:
    assert EMULATION is None or torch.cuda.device_count() == 1
    sizes = [1, 1000, 5 * MiB - 3, 40_000]
    with torch.cuda.stream(torch.cuda.Stream(0)):
        sent = [chain(counted(0, size)) for size in sizes]
        back = rpc.rpc_sync("worker1", many, args=(sent,))
        for index, (size, tensor) in enumerate(zip(sizes, back, strict=True)):
            assert tensor.device.index == 0
            expected = chain(torch.arange(size, dtype=torch.float32)) + index
            assert torch.equal(tensor.cpu(), expected)


def overwritten() -> None:
    for step in range(4):
        x = torch.full((MiB,), float(step), device="cuda:0")
        back = rpc.rpc_sync("worker1", double, args=(x,))
        x.zero_()
        assert bool((back == 16 * step + 15).all())


def gradients() -> None:
    x = chain(counted(0)).requires_grad_()
    w = torch.full((1000,), 3.0, device="cuda:0", requires_grad=True)
    with dist_autograd.context() as context:
        y = rpc.rpc_sync("worker1", multiplied, args=(x, w))
        dist_autograd.backward(context, [y.sum()])
        found = dist_autograd.get_gradients(context)
        assert torch.equal(found[w].cpu(), chain(chain(torch.arange(1000.0))))
        assert torch.equal(found[x].cpu(), torch.full((1000,), 16.0 * 3))


ALL_OF_IT = [there_and_back, overwritten, gradients]


@pytest.mark.parametrize("function", ALL_OF_IT)
def test_rpc_by_ipc(group, delays, function):
    group.all(seed, delays)
    staged = group[0].call(metric, "bytes_staged")
    group[0].call(function)
    assert group[0].call(metric, "bytes_staged") == staged
    for worker in group:
        worker.call(wait_until_returned)


@pytest.mark.parametrize("way", [{"WEFT_UNIX_SOCKET": "0"}, {"WEFT_SHARED_MEMORY": "0"}])
def test_rpc_through_host_memory(way):
    with CudaGroup({**ENVIRONMENT, **way}, maps={0: 0}) as group:
        for delays in range(3):
            group.all(seed, delays)
            for function in ALL_OF_IT:
                group[0].call(function, timeout=100)
        assert group[0].call(metric, "bytes_lent") == 0
        group.end()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_pipe_with_the_host_between(way, mode):
    check_training(("cuda:0", "cpu", "cuda:0", "cpu"), way=way, chunks=3, checkpoint=mode)
