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


def test_tensors_that_the_group_allocates(ranks):
    shared = ranks.all(path_of_default_group)[0] == "shared memory"
    ranks.all(allocated_tensors, shared)


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
