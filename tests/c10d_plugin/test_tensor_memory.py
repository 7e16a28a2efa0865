"""Tensors whose memory is shared by several, or is changed or gone while an operation is queued."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from ranks import PATHS, Ranks

LARGE = 40_000  # elements; more than travel together with others in one pack

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


def coalesced_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup):
    return dist.all_reduce_coalesced([torch.ones(2), tensor], group=group, async_op=True)


def premultiplied_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup):
    return dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0), group=group, async_op=True)


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup):
    return dist.all_reduce(tensor, group=group, async_op=True)


def all_reduce_of_columns(tensor: torch.Tensor, group: dist.ProcessGroup):
    return dist.all_reduce(tensor.view(-1, 2).t(), group=group, async_op=True)


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup):
    parts = [torch.empty(tensor.numel()) for _ in range(dist.get_world_size())]
    return dist.all_gather(parts, tensor, group=group, async_op=True)


def memory_gone_while_queued(numel: int) -> None:
    """An error here, and soon one on the others, which may come before this rank or after it."""
    calls = (
        all_reduce,
        all_reduce_of_columns,
        premultiplied_all_reduce,
        coalesced_all_reduce,
        all_gather,
    )
    for call in calls:
        group, tensor = dist.new_group(), torch.ones(numel)
        works = []

        def queue(call=call, group=group, tensor=tensor, works=works) -> None:
            works.append(call(tensor, group))
            tensor.untyped_storage().resize_(0)

        if dist.get_rank() == 0:
            held_back(group, f"queued {call.__name__}", queue)
            with pytest.raises(RuntimeError, match=r"storage of only 0 bytes.* wait\(\)"):
                works[0].wait()
            continue
        # Perhaps while it is still in the first operation: then rank 0 was faster.
        with pytest.raises(RuntimeError, match=r"failed on rank 0 .* only 0 bytes"):
            held_back(group, f"queued {call.__name__}", queue)
            call(tensor, group).wait()


def coalesced_outputs_that_share_memory() -> None:
    """The last one of the list stays, though small ones travel together and before large ones."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    small, large = (torch.full((n,), rank + 1.0) for n in (4, LARGE))

    whole = torch.zeros(size * LARGE)
    outputs, inputs = [whole[: 4 * size], whole, whole[: 4 * size]], [small, large, small + 10]
    group.allgather_into_tensor_coalesced(outputs, inputs).wait()
    wanted = torch.arange(1.0, size + 1).repeat_interleave(LARGE)
    wanted[: 4 * size] = torch.arange(11.0, size + 11).repeat_interleave(4)
    assert torch.equal(whole, wanted)
    whole.zero_()
    with dist._coalescing_manager():
        for output, part in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, part)
    assert torch.equal(whole, wanted)

    place = torch.zeros(LARGE)
    lists = [[place[:4], place, place[:4]] for _ in range(size)]
    group.allgather_coalesced(lists, inputs).wait()
    assert place[:4].eq(size + 10).all() and place[4:].eq(size).all()

    place.zero_()
    inputs = [torch.full((n * size,), value) for n, value in ((4, 1.0), (LARGE, 2.0), (4, 3.0))]
    group.reduce_scatter_tensor_coalesced(lists[0], inputs).wait()
    assert place[:4].eq(3 * size).all() and place[4:].eq(2 * size).all()

    bits = torch.zeros(2)
    outputs = [bits, bits.view(torch.int32), bits]  # a pack for each type
    inputs = [torch.full((2 * size,), value).to(out.dtype) for value, out in enumerate(outputs, 1)]
    group.reduce_scatter_tensor_coalesced(outputs, inputs).wait()
    assert bits.eq(3 * size).all()


@pytest.mark.parametrize(
    "function", [factor_changed_while_queued, coalesced_outputs_that_share_memory]
)
def test_is_right(ranks, function):
    ranks.all(function)


@pytest.mark.parametrize("numel", [8, 100_000])
@pytest.mark.parametrize("path", PATHS)
def test_memory_that_is_gone_when_a_queued_operation_runs_is_an_error_on_all_ranks(path, numel):
    with Ranks(3, PATHS[path]) as ranks:
        ranks.all(memory_gone_while_queued, numel)
