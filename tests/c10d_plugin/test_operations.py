"""Every operation, with the types and shapes it must take, against what torch computes by itself."""

from __future__ import annotations

import pytest

# What ranks run. Each checks its own results; a tensor is made from (rank, seed), so that every rank
# can make those of the others.

REDUCED = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
MOVED = REDUCED + " uint16 uint32 uint64 float8_e4m3fn float8_e5m2"


def tensor_of(rank: int, shape=(5, 3), dtype="float32", seed: int = 0):
    import torch

    generator = torch.Generator().manual_seed(100 * seed + rank)
    kind = getattr(torch, dtype)
    small = torch.randint(0, 2 if dtype == "bool" else 5, shape, generator=generator)
    if kind.is_complex:
        return torch.complex(small.float(), small.float() + 1).to(kind)
    return small.to(kind)


def expected_reduction(name: str, dtype: str, size: int, shape=(5, 3)):
    import functools

    import torch

    parts = [tensor_of(rank, shape, dtype) for rank in range(size)]
    if name == "AVG":
        total = functools.reduce(torch.add, parts)
        if total.dtype.is_floating_point or total.dtype.is_complex:
            return total / size
        return torch.div(total, size, rounding_mode="trunc")
    step = {
        "SUM": torch.logical_or if dtype == "bool" else torch.add,
        "PRODUCT": torch.logical_and if dtype == "bool" else torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }[name]
    return functools.reduce(step, parts)


def defined(name: str, dtype: str) -> bool:
    import torch

    kind = getattr(torch, dtype)
    whole = not kind.is_complex and not kind.is_floating_point
    if name in ("BAND", "BOR", "BXOR"):
        return whole
    if name in ("MIN", "MAX"):
        return not kind.is_complex
    if name == "AVG":
        return dtype != "bool"
    return True


def close(got, wanted) -> None:
    import torch

    if got.dtype in (torch.float16, torch.bfloat16):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=1e-2)
    else:
        torch.testing.assert_close(got, wanted)


def reductions(dtype: str) -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        if not defined(name, dtype):
            continue
        op = getattr(dist.ReduceOp, name)
        wanted = expected_reduction(name, dtype, size)
        tensor = tensor_of(rank, dtype=dtype)
        options = dist.AllreduceOptions()
        options.reduceOp = op
        group.allreduce([tensor], options).wait()  # complex ones too: Python would make them real
        close(tensor, wanted)
        for root in range(size):
            tensor = tensor_of(rank, dtype=dtype)
            options = dist.ReduceOptions()
            options.reduceOp, options.rootRank = op, root
            group.reduce([tensor], options).wait()
            close(tensor, wanted if rank == root else tensor_of(rank, dtype=dtype))
        whole = expected_reduction(name, dtype, size, (size * 4, 3))
        inputs = list(tensor_of(rank, (size * 4, 3), dtype).chunk(size))
        output = torch.empty_like(inputs[0])
        options = dist.ReduceScatterOptions()
        options.reduceOp = op
        group.reduce_scatter([output], [inputs], options).wait()
        close(output, whole.chunk(size)[rank])
        output.zero_()
        group._reduce_scatter_base(output, torch.cat(inputs), options).wait()
        close(output, whole.chunk(size)[rank])


def movements(dtype: str) -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD

    def same(got, wanted):
        assert got.shape == wanted.shape
        assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))

    mine = tensor_of(rank, dtype=dtype)
    all_of_them = [tensor_of(other, dtype=dtype) for other in range(size)]
    for root in range(size):
        tensor = mine.clone()
        group.broadcast(tensor, root).wait()
        same(tensor, all_of_them[root])
        outputs = [torch.empty_like(mine) for _ in range(size)]
        group.gather([outputs] if rank == root else [], [mine], gather_options(root)).wait()
        if rank == root:
            for got, wanted in zip(outputs, all_of_them, strict=True):
                same(got, wanted)
        output = torch.empty_like(mine)
        group.scatter([output], [all_of_them] if rank == root else [], scatter_options(root)).wait()
        same(output, mine)
    outputs = [torch.empty_like(mine) for _ in range(size)]
    group.allgather([outputs], [mine]).wait()
    for got, wanted in zip(outputs, all_of_them, strict=True):
        same(got, wanted)
    flat = torch.empty((5 * size, 3), dtype=mine.dtype)
    group._allgather_base(flat, mine).wait()
    same(flat, torch.cat(all_of_them))
    outputs = [torch.empty_like(mine) for _ in range(size)]
    group.alltoall(outputs, [tensor_of(rank, dtype=dtype, seed=to) for to in range(size)]).wait()
    for other, got in enumerate(outputs):
        same(got, tensor_of(other, dtype=dtype, seed=rank))
    if rank == 0:
        dist.send(mine, 1)
    elif rank == 1:
        got = torch.empty_like(mine)
        dist.recv(got, 0)
        same(got, all_of_them[0])


def gather_options(root: int):
    import torch.distributed as dist

    options = dist.GatherOptions()
    options.rootRank = root
    return options


def scatter_options(root: int):
    import torch.distributed as dist

    options = dist.ScatterOptions()
    options.rootRank = root
    return options


@pytest.mark.parametrize("dtype", REDUCED.split())
def test_reductions(ranks, dtype):
    ranks.all(reductions, dtype)


@pytest.mark.parametrize("dtype", MOVED.split())
def test_movements(ranks, dtype):
    ranks.all(movements, dtype)


def odd_shapes() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, size + 1))
    for shape in ((), (0,), (0, 4), (1,), (7, 1, 3), (70_001,)):
        tensor = torch.full(shape, float(rank + 1))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full(shape, float(total)))
        outputs = [torch.empty(shape) for _ in range(size)]
        dist.all_gather(outputs, torch.full(shape, float(rank)))
        for other, got in enumerate(outputs):
            assert torch.equal(got, torch.full(shape, float(other)))
        tensor = torch.full(shape, float(rank))
        dist.broadcast(tensor, size - 1)
        assert torch.equal(tensor, torch.full(shape, size - 1.0))


def strided_tensors() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    backing = torch.zeros(8, 6)
    view = backing.t()[1:4]
    view.fill_(rank + 1.0)
    dist.all_reduce(view)
    assert torch.equal(view, torch.full((3, 8), sum(range(1, size + 1)) + 0.0))
    assert backing[:, 0].eq(0).all() and backing[:, 4:].eq(0).all()
    view.fill_(rank)
    dist.broadcast(view, 1)
    assert view.eq(1).all() and backing[:, 0].eq(0).all()
    outputs = list(torch.zeros(4, size * 2).t().split(2))
    dist.all_gather(outputs, torch.full((4, 2), float(rank)).t())
    for other, got in enumerate(outputs):
        assert got.eq(other).all()
    channels = torch.full((2, 3, 4, 4), rank + 1.0).to(memory_format=torch.channels_last)
    dist.all_reduce(channels)
    assert channels.eq(sum(range(1, size + 1))).all()
    leaf = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(leaf)
    assert leaf.eq(size).all() and leaf.requires_grad


def uneven_sizes() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    outputs = [torch.empty(other * 3) for other in range(size)]
    dist.all_gather(outputs, torch.full((rank * 3,), float(rank)))
    for other, got in enumerate(outputs):
        assert torch.equal(got, torch.full((other * 3,), float(other)))
    send_rows = [rank + to for to in range(size)]
    take_rows = [other + rank for other in range(size)]
    sent = torch.cat([torch.full((rows, 2), rank * 10.0 + to) for to, rows in enumerate(send_rows)])
    got = torch.empty(sum(take_rows), 2)
    dist.all_to_all_single(got, sent, take_rows, send_rows)
    wanted = [torch.full((rows, 2), o * 10.0 + rank) for o, rows in enumerate(take_rows)]
    assert torch.equal(got, torch.cat(wanted))
    shares = [torch.full((to + 1,), float(rank)) for to in range(size)]
    output = torch.empty(rank + 1)
    dist.reduce_scatter(output, shares)
    assert output.eq(sum(range(size))).all()


def coalesced_operations() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, size + 1))
    sizes = (1, 30_000, 7, 0, 5)
    for kinds in ((torch.float32,), (torch.float32, torch.float64, torch.int32)):
        tensors = [
            torch.full((n,), rank + 1, dtype=kinds[i % len(kinds)]) for i, n in enumerate(sizes)
        ]
        dist.group.WORLD.allreduce_coalesced(tensors).wait()
        for tensor in tensors:
            assert tensor.eq(total).all()
    with _coalescing_manager():
        many = [torch.full((3,), rank + 1.0) for _ in range(4)]
        for tensor in many:
            dist.all_reduce(tensor)
    assert all(tensor.eq(total).all() for tensor in many)
    inputs = [torch.full((n,), float(rank)) for n in sizes]
    outputs = [torch.empty(n * size) for n in sizes]
    with _coalescing_manager(async_ops=True) as manager:
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    manager.wait()
    for output, n in zip(outputs, sizes, strict=True):
        assert torch.equal(output, torch.arange(size).repeat_interleave(n).float())
    inputs = [torch.full((n * size,), float(rank)) for n in sizes]
    outputs = [torch.empty(n) for n in sizes]
    with _coalescing_manager():
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, tensor)
    assert all(output.eq(sum(range(size))).all() for output in outputs)
    lists = [[torch.empty(n) for n in (2, 40_000)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [torch.full((n,), float(rank)) for n in (2, 40_000)])
    for other, tensors in enumerate(lists):
        assert all(tensor.eq(other).all() for tensor in tensors)
    group = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    many = [torch.full((3,), rank + 1.0) for _ in range(4)]
    for tensor in many:
        group.allreduce([tensor])
    group._end_coalescing(torch.device("cpu")).wait()
    assert all(tensor.eq(total).all() for tensor in many)


def sparse_sums() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()

    def of(which: int):
        places = torch.tensor([[0, which + 1, which + 1], [2, 0, 0]])
        return torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0, which]), (size + 1, 3))

    tensor = of(rank)
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), sum(of(other).to_dense() for other in range(size)))
    empty = torch.sparse_coo_tensor(torch.empty(2, 0).long(), torch.empty(0), (4, 4))
    dist.all_reduce(empty)
    assert empty._nnz() == 0


def premultiplied_sums() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, size + 1))
    for factor in (0.5, torch.tensor([0.5])):
        tensor = torch.full((6,), rank + 1.0)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        assert tensor.eq(total / 2).all()
        output = torch.empty(2)
        dist.reduce_scatter_tensor(
            output, torch.full((2 * size,), rank + 1.0), dist._make_nccl_premul_sum(factor)
        )
        assert output.eq(total / 2).all()


def mixed_types_in_one_premultiplied_call() -> None:
    """The factor is each type's own: a whole number for integers, which float64 would round."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _coalescing_manager

    rank, size = dist.get_rank(), dist.get_world_size()
    large, factor = 2**55 + 1, dist._make_nccl_premul_sum(3.0)
    for dtypes in ((torch.float32, torch.int64), (torch.int64, torch.float32)):
        values = {torch.float32: 0.5, torch.int64: large}
        tensors = [torch.full((2,), values[dtype], dtype=dtype) for dtype in dtypes]
        with _coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor, factor)
        inputs = [torch.full((2 * size,), values[dtype], dtype=dtype) for dtype in dtypes]
        outputs = [torch.empty(2, dtype=dtype) for dtype in dtypes]
        with _coalescing_manager():
            for output, whole in zip(outputs, inputs, strict=True):
                dist.reduce_scatter_tensor(output, whole, factor)
        for tensor in (*tensors, *outputs):
            expected = 3 * size * values[tensor.dtype]
            assert tensor.tolist() == [expected] * 2, (rank, tensor, expected)


def asynchronous_operations() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, size + 1))
    tensors = [torch.full((i * 100 + 1,), rank + 1.0) for i in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    last = torch.full((2,), rank + 1.0)
    dist.all_reduce(last)  # a synchronous one behind them
    for work, tensor in zip(works, tensors, strict=True):
        assert work.wait() and work.is_completed() and work.is_success()
        assert tensor.eq(total).all() and torch.equal(work.result()[0], tensor)
    assert last.eq(total).all()
    work = dist.all_reduce(torch.full((2,), rank + 1.0), async_op=True)
    future = work.get_future().then(lambda done: done.value()[0] * 2)
    assert future.wait().eq(total * 2).all()

    # A callback that waits for operations of the same group.
    def again(done):
        other = done.value()[0].clone()
        return dist.all_reduce(other, async_op=True).get_future().wait()[0]

    work = dist.all_reduce(torch.full((2,), rank + 1.0), async_op=True)
    assert work.get_future().then(again).wait().eq(total * size).all()
    assert dist.barrier(async_op=True).wait()


def messages_between_ranks() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % size, (rank - 1) % size
    ops = []
    got = [torch.empty(n) for n in (1, 100_000)]
    for tensor in got:
        ops.append(dist.P2POp(dist.irecv, tensor, before))
        ops.append(dist.P2POp(dist.isend, torch.full_like(tensor, rank), after))
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert all(tensor.eq(before).all() for tensor in got)
    # Tags, out of order, beside a collective.
    receives = []
    for tag in (3, 1, 2):
        receives.append((tag, torch.empty(2), None))
    works = [dist.irecv(tensor, before, tag=tag) for tag, tensor, _ in receives]
    shared = torch.ones(3)
    dist.all_reduce(shared)
    sends = [dist.isend(torch.full((2,), float(tag)), after, tag=tag) for tag in (1, 2, 3)]
    for work in (*works, *sends):
        work.wait()
    assert all(tensor.eq(tag).all() for tag, tensor, _ in receives)
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            tensor = torch.empty(1)
            source = dist.recv(tensor)
            assert tensor.item() == source
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.full((1,), float(rank)), 0)
    # To itself: torch allows it for isend and irecv.
    own = [torch.empty(n) for n in (1, 100_000)]
    works = [dist.isend(torch.full_like(tensor, rank), rank, tag=4) for tensor in own]
    works += [dist.irecv(tensor, rank, tag=4) for tensor in own]
    for work in works:
        work.wait()
    assert all(tensor.eq(rank).all() for tensor in own)
    strided = torch.zeros(4, 6).t()
    if rank == 0:
        dist.send(torch.arange(24.0).reshape(4, 6).t(), 1)
    elif rank == 1:
        dist.recv(strided, 0)
        assert torch.equal(strided, torch.arange(24.0).reshape(4, 6).t())


def object_collectives() -> None:
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    thing = {"rank": rank, "text": "x" * rank * 1000}
    everything = [None] * size
    dist.all_gather_object(everything, thing)
    assert [item["rank"] for item in everything] == list(range(size))
    listed = [thing, rank]
    dist.broadcast_object_list(listed, src=1)
    assert listed[1] == 1
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(thing, gathered, dst=0)
    assert rank != 0 or len(gathered[-1]["text"]) == (size - 1) * 1000
    output = [None]
    dist.scatter_object_list(
        output, [("for", r) for r in range(size)] if rank == 0 else None, src=0
    )
    assert output == [("for", rank)]


def groups_in_groups() -> None:
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 1])
    alone = [dist.new_group([other]) for other in range(size)]
    everybody = dist.new_group()
    tensor = torch.ones(2)
    works = []
    if rank < 2:
        works.append(dist.all_reduce(tensor, group=pair, async_op=True))
    other = torch.ones(2)
    works.append(dist.all_reduce(other, group=everybody, async_op=True))
    solo = torch.full((2,), 5.0)
    dist.all_reduce(solo, group=alone[rank])
    for work in works:
        work.wait()
    assert tensor.eq(2 if rank < 2 else 1).all() and other.eq(size).all() and solo.eq(5).all()
    backend = everybody._get_backend(torch.device("cpu"))
    assert backend.supports_splitting and backend.name() == "weft"
    halves = dist.group.WORLD.split_group(
        [0, 1] if rank < 2 else [rank], group_name="half" if rank < 2 else f"alone{rank}"
    )
    tensor = torch.ones(2)
    halves.allreduce([tensor]).wait()
    assert tensor.eq(2 if rank < 2 else 1).all()
    for group in (pair, everybody):
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def groups_without_some() -> None:
    import pytest as pt
    import torch
    import torch.distributed as dist

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert backend.supports_shrinking
    if rank == last:
        with pt.raises(RuntimeError, match="is excluded"):
            backend.shrink([last], 0, None)
        return
    smaller = backend.shrink([last], 0, None)
    assert (smaller.rank(), smaller.size()) == (rank, last)
    tensor = torch.ones(2)
    smaller.allreduce([tensor]).wait()
    assert tensor.eq(last).all()
    smaller.shutdown()


def groups_without_some_and_then_without_others() -> None:
    """Each rank takes part in the groups that it stays in, and so in another number of them."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    for excluded in (size - 1, 0, size - 1):
        if rank == excluded:
            continue
        smaller = backend.shrink([excluded], 0, None)
        tensor = torch.ones(2)
        smaller.allreduce([tensor]).wait()
        assert tensor.eq(size - 1).all()


def sequence_numbers() -> int:
    import torch
    import torch.distributed as dist

    # ProcessGroup itself asks only the backends it knows by name.
    group = dist.group.WORLD._get_backend(torch.device("cpu"))
    before = group._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert group._get_sequence_number_for_group() == before + 4
    return before


def barriers() -> None:
    from datetime import timedelta

    import torch.distributed as dist

    dist.barrier()
    for _ in range(3):
        dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)


def profiled_operations() -> list[str]:
    import torch
    import torch.distributed as dist

    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(3, 2))
        dist.all_reduce(torch.ones(3, 2), async_op=True).wait()
        dist.barrier()
    events = [event for event in profiler.function_events if event.name.startswith("weft:")]
    assert all(event.is_async for event in events)
    assert events[0].input_shapes == [[3, 2]]
    return [event.name for event in events]


@pytest.mark.parametrize(
    "function",
    [
        odd_shapes,
        strided_tensors,
        uneven_sizes,
        coalesced_operations,
        sparse_sums,
        premultiplied_sums,
        mixed_types_in_one_premultiplied_call,
        asynchronous_operations,
        messages_between_ranks,
        object_collectives,
        groups_in_groups,
        groups_without_some,
        groups_without_some_and_then_without_others,
        barriers,
    ],
)
def test_behaves(ranks, function):
    ranks.all(function)


def test_sequence_numbers_agree(ranks):
    assert len(set(ranks.all(sequence_numbers))) == 1


def test_one_event_per_operation_is_profiled(ranks):
    for names in ranks.all(profiled_operations):
        assert names == ["weft:all_reduce", "weft:all_reduce", "weft:barrier"]
