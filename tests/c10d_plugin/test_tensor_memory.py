"""Tensors whose memory is changed while an operation is queued."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

# What ranks run.


def held_back(group: dist.ProcessGroup, name: str, queue: Callable[[], None]) -> None:
    """Rank 0 queues an operation behind one that the others join only afterwards."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() != 0:
        store.wait([name])
        dist.all_reduce(torch.ones(2), group=group)
        return
    first = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    queue()
    store.set(name, "queued")
    first.wait()


def factor_changed_while_queued() -> None:
    """The factor is that of the call, as is that of a number."""
    size, world = dist.get_world_size(), dist.group.WORLD
    for dtype in (torch.float32, torch.int64):
        factor, tensor = torch.tensor([2], dtype=dtype), torch.ones(3)
        works = []

        def queue(factor=factor, tensor=tensor, works=works) -> None:
            works.append(dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor), async_op=True))
            factor.fill_(100)

        held_back(world, f"queued with a factor of {dtype}", queue)
        if not works:
            queue()
        works[0].wait()
        assert tensor.eq(2 * size).all(), tensor


@pytest.mark.parametrize("function", [factor_changed_while_queued])
def test_is_right(ranks, function):
    ranks.all(function)
