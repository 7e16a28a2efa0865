"""Tensors that a group allocates: collectives on them, and how long they last."""

from __future__ import annotations

import pytest
from ranks import path_of_default_group


def allocated_tensors(supported: bool) -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    backend = dist.group.WORLD._get_backend(device)
    assert backend.supports_tensor_alloc(device) == supported
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 60_000 // size * size

    def allocate(elements, dtype=torch.float32):
        made = backend.allocate_tensor(elements, dtype=dtype, device=device)
        assert made.shape == (elements,) and made.dtype == dtype and made.device == device
        return made

    whole = allocate(count).fill_(rank + 1)
    dist.all_reduce(whole)
    assert torch.all(whole == size * (size + 1) / 2)
    # Only a part of it, and not contiguous: as any other tensor.
    view = allocate(2 * count).view(count, 2)[:, 0].fill_(rank)
    dist.all_reduce(view, dist.ReduceOp.MAX)
    assert torch.all(view == size - 1)
    # One rank's is ordinary memory.
    mixed = (torch.empty(count) if rank == size - 1 else allocate(count)).fill_(rank + 1)
    dist.all_reduce(mixed, dist.ReduceOp.AVG)
    assert torch.all(mixed == (size + 1) / 2)
    gathered = allocate(count * size, torch.int32)
    own = gathered[rank * count : (rank + 1) * count].fill_(rank)  # as FSDP2 does it
    dist.all_gather_into_tensor(gathered, own)
    assert torch.equal(gathered, torch.arange(size, dtype=torch.int32).repeat_interleave(count))
    scattered = torch.empty(count // size)
    dist.reduce_scatter_tensor(scattered, whole, async_op=True).wait()
    assert torch.all(scattered == size * size * (size + 1) / 2)
    sent, got = allocate(count).fill_(rank), allocate(count)
    dist.all_to_all_single(got, sent)
    assert torch.equal(got, torch.arange(float(size)).repeat_interleave(count // size))
    root = allocate(count).fill_(rank)
    dist.broadcast(root, size - 1)
    assert torch.all(root == size - 1)
    # Too little for it to matter, and nothing.
    assert allocate(1).fill_(3) == 3
    assert allocate(0).numel() == 0
    with pytest.raises(RuntimeError, match="cannot be allocated"):
        allocate(-1)
    # Resized, as FSDP frees and makes storage again.
    whole.fill_(2).resize_(2 * count)
    assert torch.all(whole[:count] == 2)
    dist.all_reduce(whole.fill_(1))
    assert torch.all(whole == size)
    storage = sent.untyped_storage()
    storage.resize_(0)
    storage.resize_(4 * count)
    dist.all_reduce(sent.fill_(1))
    assert torch.all(sent == size)


def test_tensors_that_the_group_allocates(ranks):
    shared = ranks.all(path_of_default_group)[0] == "shared memory"
    ranks.all(allocated_tensors, shared)


def mapping_of(tensor) -> str:
    """What is mapped where the tensor lies."""
    address = tensor.data_ptr()
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return line.split(maxsplit=5)[-1].strip()
    raise AssertionError("the tensor lies nowhere")


def hooked_gradients(shared: bool, views: bool) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import weft

    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    net = nn.Sequential(nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 600))
    alone = [parameter.detach().clone().requires_grad_() for parameter in net.parameters()]
    trained = DistributedDataParallel(net, gradient_as_bucket_view=views, bucket_cap_mb=0.2)
    lay: list[str] = []

    def hook(state, bucket):
        done = weft.ddp_hook(state, bucket)
        if bucket.buffer().numel() > 10_000:  # where the group's memory is worth its while
            lay.append(mapping_of(bucket.buffer()))
        return done

    trained.register_comm_hook(None, hook)
    for step in range(3):
        batches = [
            torch.randn(4, 600, generator=torch.Generator().manual_seed(100 * step + one))
            for one in range(size)
        ]
        trained(batches[rank]).square().mean().backward()
        outputs = [
            torch.func.functional_call(net, dict(zip(names(net), alone, strict=True)), b)
            for b in batches
        ]
        expected = torch.autograd.grad(sum(o.square().mean() for o in outputs) / size, alone)
        for parameter, gradient in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)
            if views and parameter.numel() > 10_000:
                assert ("weft-group" in mapping_of(parameter.grad)) == shared
        trained.zero_grad()
    assert len(lay) > 3  # several buckets
    assert {"weft-group" in place for place in lay} == {shared}


def names(net) -> list[str]:
    return [name for name, _ in net.named_parameters()]


@pytest.mark.parametrize("views", [False, True])
def test_the_hook_for_ddp_averages_in_the_groups_memory(ranks, views):
    shared = ranks.all(path_of_default_group)[0] == "shared memory"
    ranks.all(hooked_gradients, shared, views)


def sparse_gradients() -> None:
    """Beside dense ones, whose bucket moves into memory of the group."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import weft

    torch.manual_seed(0)
    rank, size = dist.get_rank(), dist.get_world_size()
    net = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3))
    trained = DistributedDataParallel(net)
    trained.register_comm_hook(None, weft.ddp_hook)
    for step in range(3):
        batches = [torch.tensor([one, step, step]) for one in range(size)]
        trained(batches[rank]).square().sum().backward()
        loss = sum(net(batch).square().sum() for batch in batches) / size
        expected = torch.autograd.grad(loss, list(net.parameters()))
        for parameter, gradient in zip(net.parameters(), expected, strict=True):
            assert parameter.grad.is_sparse == gradient.is_sparse
            torch.testing.assert_close(parameter.grad.to_dense(), gradient.to_dense())
        trained.zero_grad()


def test_the_hook_for_ddp_averages_sparse_gradients(ranks):
    ranks.all(sparse_gradients)


def hook_of_another_group() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import weft

    gloo = dist.new_group(backend="gloo")
    trained = DistributedDataParallel(nn.Linear(4, 4), process_group=gloo)
    trained.register_comm_hook(gloo, weft.ddp_hook)
    with pytest.raises(ValueError, match="by ProcessGroupGloo, not by weft"):
        trained(torch.ones(1, 4)).sum().backward()
    dist.barrier()


def test_the_hook_for_ddp_refuses_a_group_that_is_not_wefts(ranks):
    ranks.all(hook_of_another_group)


def outliving_tensor() -> None:
    import torch
    import torch.distributed as dist

    device = torch.device("cpu")
    group = dist.new_group()
    kept = group._get_backend(device).allocate_tensor(1 << 20, dtype=torch.float32, device=device)
    dist.all_reduce(kept.fill_(1), group=group)
    dist.destroy_process_group(group)
    assert torch.all(kept == dist.get_world_size())
    dist.all_reduce(kept)  # another group's: as ordinary memory
    assert torch.all(kept == dist.get_world_size() ** 2)
    dist.barrier()


def test_allocated_tensors_outlive_their_group(ranks):
    ranks.all(outliving_tensor)
