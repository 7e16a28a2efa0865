"""Tensors that are not on the CPU: another backend of the same ranks does the work (NCCL for CUDA)."""

from __future__ import annotations

import datetime
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks

import weft
from weft._torch import process_group

GPUS = torch.cuda.device_count() if dist.is_nccl_available() else 0
needs_a_gpu = pytest.mark.skipif(GPUS < 1, reason="no GPU here, or a PyTorch without NCCL")
needs_two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"NCCL wants a GPU per rank; {GPUS} here")


@pytest.fixture
def alone():
    """A group of one; leaves none behind."""
    made = []

    def make(backend: str = "weft", **options):
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **options)
        made.append(True)
        return dist.group.WORLD._get_backend(torch.device("cpu"))

    yield make
    if made:
        dist.destroy_process_group()


@pytest.fixture
def meta(monkeypatch):
    """A backend for torch's "meta" tensors that does nothing; what it was made of."""
    asked = []

    def make(options, device, store, rank, size, timeout, group_name, global_ranks):
        asked.append((options, store, rank, size, timeout, group_name, global_ranks))
        return torch._C._distributed_c10d.FakeProcessGroup._create_internal(rank, size)

    monkeypatch.setitem(process_group._DELEGATES, "meta", make)
    return asked


def test_a_device_gets_its_backend_with_its_first_tensor(alone, meta):
    options = weft.ProcessGroupOptions()
    backend = alone(timeout=datetime.timedelta(seconds=17), pg_options=options)
    backend.allreduce([torch.ones(3)]).wait()
    assert not meta and backend.delegate("meta") is None
    work = backend.allreduce([torch.ones(3, device="meta")])
    assert isinstance(work, torch._C._distributed_c10d.FakeWork)
    backend.broadcast([torch.ones(3, device="meta")])
    ((given, store, rank, size, timeout, _, ranks),) = meta
    assert given is options
    assert (rank, size, ranks, timeout.total_seconds()) == (0, 1, [], 17)  # torch: [] is all
    store.set("a part of its own", "yes")
    assert backend.delegate("meta").rank() == 0


def test_devices_without_a_backend_are_refused(alone):
    backend = alone()
    with pytest.raises(RuntimeError, match="no backend for tensors on meta"):
        backend.allreduce([torch.ones(3, device="meta")])
    backend.allreduce([torch.ones(3)]).wait()


def test_one_call_has_one_device(alone, meta):
    backend = alone()
    with pytest.raises(RuntimeError, match="one device"):
        backend.allreduce_coalesced([torch.ones(3), torch.ones(3, device="meta")])


def test_an_error_of_the_maker_reaches_the_caller(alone, monkeypatch):
    def fail(*_):
        raise ValueError("the driver is asleep")

    monkeypatch.setitem(process_group._DELEGATES, "meta", fail)
    backend = alone()
    with pytest.raises(Exception, match="the driver is asleep"):
        backend.allreduce([torch.ones(3, device="meta")])
    backend.allreduce([torch.ones(3)]).wait()


# Ten interpreters that end while groups have delegates. The makers' globals are not the program's: these
# would live as long as the groups, and the groups as long as they.
AT_EXIT = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
from weft import _C

for _ in range(10):
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"an interpreter ended with status {status}")
else:
    sys.exit(0)

class Slow:  # the threads let go while the interpreter is still ending
    sleep = staticmethod(time.sleep)  # the module goes before
    def __del__(self):
        self.sleep(0.1)

sys.last_to_go = Slow()  # after the groups
create = torch._C._distributed_c10d.FakeProcessGroup._create_internal
groups = []
for _ in range(20):
    make = eval("lambda device, store, rank, size, *rest: create(rank, size)", {"create": create})
    limit = datetime.timedelta(seconds=9)
    groups.append(_C.WeftBackend(dist.HashStore(), 0, 1, limit, make_delegate=make))
    groups[-1].allreduce([torch.ones(3, device="meta")])
"""


def test_delegates_that_the_exit_of_the_interpreter_releases():
    """Groups nobody destroyed: threads of theirs let go of the makers while the interpreter ends."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_mixed_group_is_one_backend(alone):
    backend = alone("cpu:weft,cuda:weft")
    assert dist.group.WORLD._get_backend(torch.device("cuda")) is backend
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [1, 1, 1]


def test_a_pytorch_without_nccl_is_named(alone, monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(RuntimeError, match="built without it"):
        process_group._make_nccl(
            weft.ProcessGroupOptions(),
            "cuda",
            dist.HashStore(),
            0,
            1,
            datetime.timedelta(1),
            "",
            [0],
        )


@needs_a_gpu
@pytest.mark.parametrize("bound", [False, True])
def test_cuda_tensors_go_through_nccl(alone, bound):
    device = torch.device("cuda:0")
    backend = alone(device_id=device) if bound else alone()
    assert (backend.delegate("cuda") is not None) == bound
    tensor = torch.ones(3, device=device)
    dist.all_reduce(tensor)
    dist.all_reduce(torch.ones(3))
    assert tensor.tolist() == [1, 1, 1]
    assert isinstance(backend.delegate("cuda"), dist.ProcessGroupNCCL)
    dist.barrier(device_ids=[0])
    gathered = torch.empty(3, device=device)
    with dist._coalescing_manager(device=device):
        dist.all_gather_into_tensor(gathered, tensor)
    assert torch.equal(gathered, tensor)


def both_devices() -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    there, here = torch.full((4,), rank + 1.0, device=device), torch.full((4,), rank + 1.0)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in (there, here)]
    for work in works:
        work.wait()
    half = dist.new_group([0, 1])
    dist.all_reduce(there, group=half)
    if rank == 0:
        dist.send(there, 1)
    elif rank == 1:
        dist.recv(there, 0)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).to(device))
    net(there).sum().backward()
    assert size == 2
    return [there[0].item(), here[0].item()]


@needs_two_gpus
def test_one_group_on_both_devices():
    with Ranks(2) as ranks:
        assert ranks.all(both_devices) == [[6.0, 3.0]] * 2
