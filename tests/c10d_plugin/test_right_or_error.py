"""What a caller may do around an operation, and what must not make its result silently wrong."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import PATHS, Ranks

CPU = torch.device("cpu")

# What ranks run.


def batches_beside_collectives() -> int:
    """Batches of messages in one thread, all_reduces in another, on one group; how many were wrong."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def batches() -> None:
        for _ in range(300):
            got = torch.empty(1000)
            ops = [
                dist.P2POp(dist.irecv, got, (rank - 1) % size),
                dist.P2POp(dist.isend, torch.full((1000,), float(rank)), (rank + 1) % size),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            assert got.eq((rank - 1) % size).all()

    thread = threading.Thread(target=batches)
    thread.start()
    wrong = 0
    for _ in range(300):
        tensor = torch.ones(10)
        dist.all_reduce(tensor)
        wrong += not tensor.eq(size).all()
    thread.join()
    return wrong


def after_a_batch_that_raised() -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(RuntimeError, match="SparseCPU"):
        dist.batch_isend_irecv([dist.P2POp(dist.isend, sparse, (rank + 1) % size)])
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return tensor.tolist()


def after_a_coalescing_manager_that_raised() -> list[float]:
    for device in (None, torch.device("cpu")):
        with pytest.raises(KeyError), dist._coalescing_manager(device=device):
            dist.all_reduce(torch.ones(2))
            raise KeyError
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return tensor.tolist()


def blocks_beside_another_threads_collectives(*kinds: Callable[[], Any]) -> None:
    """Within a coalesced block another thread's collectives run at once, and are right."""
    for device, async_ops in itertools.product((None, torch.device("cpu")), (False, True)):
        for record in kinds or (many_all_reduces, many_all_gathers, many_reduce_scatters):
            meanwhile = []
            with dist._coalescing_manager(device=device, async_ops=async_ops) as manager:
                is_right = record()
                thread = threading.Thread(target=lambda seen=meanwhile: seen.extend(collectives()))
                thread.start()
                thread.join()
            manager.wait()
            assert meanwhile == [True] * 4, (device, async_ops, record.__name__, meanwhile)
            assert is_right(), (device, async_ops, record.__name__)
            assert collectives() == [True] * 4


def collectives() -> list[bool]:
    """Whether each of the collectives that a block records is right, and a block."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor, shares, share = torch.ones(3), torch.empty(size), torch.empty(1)
    dist.all_reduce(tensor)
    dist.all_gather_into_tensor(shares, torch.full((1,), float(rank)))
    dist.reduce_scatter_tensor(share, torch.ones(size))
    with dist._coalescing_manager():
        is_right = many_all_reduces()
    wanted = torch.arange(float(size))
    return [
        bool(tensor.eq(size).all()),
        torch.equal(shares, wanted),
        share.item() == size,
        is_right(),
    ]


SIZES = (1, 30_000, 7, 5)


def many_all_reduces() -> Callable[[], bool]:
    tensors = [torch.ones(n) for n in SIZES]
    for tensor in tensors:
        dist.all_reduce(tensor)
    return lambda: all(tensor.eq(dist.get_world_size()).all() for tensor in tensors)


def many_all_gathers() -> Callable[[], bool]:
    rank, size = dist.get_rank(), dist.get_world_size()
    outputs = [torch.empty(size, n) for n in SIZES]
    for output, n in zip(outputs, SIZES, strict=True):
        dist.all_gather_into_tensor(output, torch.full((n,), float(rank)))
    return lambda: all(output.eq(torch.arange(size)[:, None]).all() for output in outputs)


def many_reduce_scatters() -> Callable[[], bool]:
    size = dist.get_world_size()
    outputs = [torch.empty(n) for n in SIZES]
    for output, n in zip(outputs, SIZES, strict=True):
        dist.reduce_scatter_tensor(output, torch.ones(size * n))
    return lambda: all(output.eq(size).all() for output in outputs)


def blocks_of_unlike_operations() -> None:
    """torch would do to all what the first asks for."""
    size = dist.get_world_size()
    factors = [dist._make_nccl_premul_sum(factor) for factor in (2.0, 2.0, 3.0)]
    for first, second in ((dist.ReduceOp.SUM, dist.ReduceOp.MAX), (factors[0], factors[2])):
        with pytest.raises(RuntimeError, match="one reduction"), dist._coalescing_manager():
            dist.all_reduce(torch.ones(2), first)
            dist.all_reduce(torch.ones(2), second)
    with pytest.raises(RuntimeError, match="one kind"), dist._coalescing_manager():
        dist.all_reduce(torch.ones(2))
        dist.all_gather_into_tensor(torch.empty(size), torch.ones(1))
    tensors = [torch.ones(2), torch.ones(3)]
    with dist._coalescing_manager():
        for tensor, factor in zip(tensors, factors[:2], strict=True):
            dist.all_reduce(tensor, factor)
    assert all(tensor.eq(2.0 * size).all() for tensor in tensors)


def result_in_a_callback() -> None:
    """The operation's outcome is known when the callbacks of its future run."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store, key = dist.distributed_c10d._get_default_store(), "callback added"
    if rank != 0:
        store.wait([key])
    tensor = torch.ones(2)
    work = dist.all_reduce(tensor, async_op=True)
    results = work.get_future().then(lambda _: work.result()[0].tolist())
    store.set(key, "yes")
    assert results.wait() == [size, size]


def splits_of_the_same_ranks() -> None:
    """Two groups, without names of their own; also where one rank has dropped one of them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    world, ranks = dist.group.WORLD, list(range(size))
    first, second = world.split_group(ranks), world.split_group(ranks)
    assert first._get_backend(CPU) is not second._get_backend(CPU)
    a, b = torch.full((4,), 1.0), torch.full((4,), 10.0)
    calls = [lambda: first.allreduce([a]), lambda: second.allreduce([b])]
    for work in [call() for call in (calls if rank == 0 else reversed(calls))]:
        work.wait()
    assert a.eq(size).all() and b.eq(10 * size).all(), (a, b)
    if rank == 0:
        del first, calls
        gc.collect()
    third = world.split_group(ranks)
    a = torch.ones(2)
    third.allreduce([a]).wait()
    assert a.eq(size).all()


def receive_into_a_tensor_that_repeats_itself() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    send = dist.isend(torch.ones(4), (rank + 1) % size)
    with pytest.raises(RuntimeError, match="single memory location"):
        dist.recv(torch.zeros(1).expand(4), (rank - 1) % size)
    got = torch.zeros(4)
    dist.recv(got, (rank - 1) % size)
    send.wait()
    assert got.eq(1).all()


def outputs_that_repeat_themselves() -> None:
    """Each is refused before the others can take part, so nothing is half done."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def repeats(numel: int = 4) -> torch.Tensor:
        return torch.zeros(1).expand(numel)

    ones, other = torch.ones(4), (rank + 1) % size
    for call in (
        lambda: dist.all_reduce(repeats()),
        lambda: dist.all_reduce_coalesced([torch.ones(2), repeats()]),
        lambda: dist.broadcast(repeats(), other),
        lambda: dist.reduce(repeats(), rank),
        lambda: dist.all_gather([repeats()] * size, ones),
        lambda: dist.all_gather_into_tensor(repeats(4 * size), ones),
        lambda: dist.gather(ones, [repeats()] * size, dst=rank),
        lambda: dist.scatter(repeats(), src=other),
        lambda: dist.reduce_scatter(repeats(), [ones] * size),
        lambda: dist.reduce_scatter_tensor(repeats(), torch.ones(4 * size)),
        lambda: dist.all_to_all([repeats()] * size, [ones] * size),
        lambda: dist.all_to_all_single(repeats(size), torch.ones(size)),
    ):
        with pytest.raises(RuntimeError, match=r"weft:.* single memory location"):
            call()
    # What is only read may repeat itself.
    gathered = torch.empty(4 * size)
    dist.all_gather_into_tensor(gathered, torch.ones(1).expand(4))
    assert gathered.eq(1).all()
    tensor = repeats() if rank == 0 else torch.ones(4)
    dist.broadcast(tensor, 0)
    assert tensor.eq(0).all()


# More than can be allocated, in memory for 3 * 2**17 elements.
IMPOSSIBLE = ((2**17,) * 3, (1, 1, 1))


def failing_between_two_steps() -> None:
    """Rank 0 cannot make a copy that the second step needs; what it calls next would fit."""
    numel = 100_000
    tensor = torch.full((numel,), 1.0)
    if dist.get_rank() == 0:
        tensor = torch.zeros(3 * 2**17).as_strided(*IMPOSSIBLE)
    try:
        dist.all_reduce_coalesced([torch.ones(4), tensor])
    finally:
        if dist.get_rank() == 0:
            with pytest.raises(RuntimeError, match="out of step"):
                dist.all_reduce(torch.full((numel,), 100.0))


def all_to_all_with_own_shares_of_unlike_sizes() -> None:
    """What a rank has for itself is compared, too, though no message carries it."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def parts(own: int) -> list[torch.Tensor]:
        return [torch.ones(own if other == rank else 2) for other in range(size)]

    for sent, expected in ((3, 1), (1, 3), (0, 2)):
        with pytest.raises(RuntimeError, match=f"has {sent} elements, its place .* has {expected}"):
            dist.all_to_all(parts(expected), parts(sent))
    rows = [3 if other == rank else 2 for other in range(size)]
    with pytest.raises(RuntimeError, match=r"has 4 elements, its place .* has 6"):
        dist.all_to_all_single(torch.empty(sum(rows), 2), torch.ones(2 * size, 2), rows)
    with pytest.raises(RuntimeError, match=r"has 2 elements, its place .* has 4"):
        dist.all_to_all_single(torch.empty(2 * size, 2), torch.ones(2 * size))
    got = torch.zeros(2 * size)
    dist.all_to_all_single(got, torch.ones(size, 2))  # shapes may differ
    assert got.eq(1).all()


def premultiplied_without_loss() -> None:
    """Neither an imaginary part nor the lowest bits of large integers are dropped."""
    size = dist.get_world_size()
    imaginary = dist._make_nccl_premul_sum(torch.tensor([1j]))
    for tensor in (torch.ones(2), torch.ones(2, dtype=torch.complex64)):
        with pytest.raises(RuntimeError, match="complex factor"):
            dist.all_reduce(tensor, imaginary)
    tensor = torch.ones(2, dtype=torch.complex64)
    options = dist.AllreduceOptions()
    options.reduceOp = imaginary
    dist.group.WORLD.allreduce([tensor], options).wait()
    assert tensor.eq(size * 1j).all()
    for dtype in (torch.int64, torch.uint64):
        for factor in (3.0, torch.tensor(3.0), torch.tensor(3)):
            whole = torch.tensor([2**55 + 1], dtype=dtype)
            dist.all_reduce(whole, dist._make_nccl_premul_sum(factor))
            assert whole.item() == size * 3 * (2**55 + 1)
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.int32, torch.float16):
        scalar = torch.tensor(7, dtype=dtype)  # of no dimension, as the factor
        dist.all_reduce(scalar, dist._make_nccl_premul_sum(3.0))
        assert scalar.shape == () and scalar.item() == size * 21
    odd = torch.tensor([3], dtype=torch.int8)
    dist.all_reduce(odd, dist._make_nccl_premul_sum(0.5))
    assert odd.item() == size
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        whole = torch.tensor([2**40 + 2])
        dist.all_reduce(whole, dist._make_nccl_premul_sum(torch.tensor([0.5], dtype=dtype)))
        assert whole.item() == size * (2**39 + 1), dtype


def averages_of_the_largest_integers() -> None:
    size = dist.get_world_size()
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32):
        for numel in (3, 300_000):
            for value in (torch.iinfo(dtype).max, torch.iinfo(dtype).min):
                tensor = torch.full((numel,), value, dtype=dtype)
                dist.all_reduce(tensor, dist.ReduceOp.AVG)
                assert tensor.eq(value).all(), (dtype, numel, tensor[0])
                share = torch.zeros(numel, dtype=dtype)
                whole = torch.full((size * numel,), value, dtype=dtype)
                dist.reduce_scatter_tensor(share, whole, dist.ReduceOp.AVG)
                assert share.eq(value).all(), (dtype, numel, share[0])


def overlapping_tensors() -> None:
    """An input and an output, or two of either, in the same memory."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for numel in (2, 50_000):
        _overlapping_tensors(rank, size, numel)


def _overlapping_tensors(rank: int, size: int, numel: int) -> None:
    def values(of: int, count: int) -> torch.Tensor:
        return torch.arange(count, dtype=torch.float32) + 1000 * of

    total = sum(values(of, size * numel) for of in range(size))
    # An output across the border of two shares.
    x = values(rank, size * numel)
    dist.reduce_scatter_tensor(x[numel // 2 : numel // 2 + numel], x)
    assert torch.equal(x[numel // 2 : numel // 2 + numel], total[rank * numel : (rank + 1) * numel])
    x = values(rank, size * numel)
    out = x[-numel:]
    dist.reduce_scatter(out, list(x.chunk(size)))
    assert torch.equal(out, total[rank * numel : (rank + 1) * numel])
    # From another rank's place.
    x = torch.zeros(size * numel)
    other = (rank + 1) % size
    x[other * numel : (other + 1) * numel] = values(rank, numel)
    dist.all_gather_into_tensor(x, x[other * numel : (other + 1) * numel])
    assert torch.equal(x, torch.cat([values(of, numel) for of in range(size)]))
    parts = list(torch.zeros(size * numel).chunk(size))
    parts[other].copy_(values(rank, numel))
    dist.all_gather(parts, parts[other])
    assert torch.equal(torch.cat(parts), torch.cat([values(of, numel) for of in range(size)]))
    # Everything in place.
    x = values(rank, size * numel)
    dist.all_to_all_single(x, x)
    wanted = [values(of, size * numel)[rank * numel : (rank + 1) * numel] for of in range(size)]
    assert torch.equal(x, torch.cat(wanted))
    parts = list(values(rank, size * numel).chunk(size))
    dist.all_to_all(parts, parts)
    assert torch.equal(torch.cat(parts), torch.cat(wanted))
    # One output for all: the last one stays.
    x = torch.zeros(numel)
    dist.all_gather([x] * size, values(rank, numel))
    assert torch.equal(x, values(size - 1, numel))
    # The same tensor twice is reduced once.
    x = values(rank, size * numel)
    dist.all_reduce_coalesced([x, x[numel:], x])
    assert torch.equal(x, total)


def scattered_from_overlapping_parts() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(4.0 * size)
    out = x[2:6] if rank == 0 else torch.zeros(4)
    dist.scatter(out, list(x.chunk(size)) if rank == 0 else None, src=0)
    assert torch.equal(out, torch.arange(4.0 * rank, 4.0 * rank + 4))


def sparse_tensors_of_unlike_shapes() -> None:
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    unlike = [(4, 3) if rank < last else (5, 3), (4, 3) if rank < last else (4,)]
    for shape in unlike:
        tensor = torch.ones(shape).to_sparse()
        with pytest.raises(RuntimeError, match="differ"):
            dist.all_reduce(tensor)
    for dense in (0, 1):  # the same shape, with another number of sparse dimensions
        tensor = torch.ones(4, 3).to_sparse(2 if rank < last else 2 - dense)
        with pytest.raises(RuntimeError, match="differ") if dense else contextlib.nullcontext():
            dist.all_reduce(tensor)


def tensors_with_a_negative_or_a_conjugate_bit() -> None:
    """torch's fallback for them would lose what an operation writes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size

    def negative(value: float, numel: int = 4) -> torch.Tensor:
        tensor = torch.full((numel,), complex(value, -value)).conj().imag
        assert tensor.is_neg() and tensor.eq(value).all()
        return tensor

    total = size * (size + 1) / 2
    x = negative(rank + 1)
    dist.all_reduce(x)
    assert x.eq(total).all()
    x = negative(rank + 1)
    dist.all_reduce(x, async_op=True).wait()
    assert x.eq(total).all()
    x = negative(rank + 1)
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x.eq(size).all()
    x = negative(rank + 1)
    dist.reduce(x, 0)
    assert x.eq(total if rank == 0 else rank + 1).all()
    x = negative(rank + 1)
    dist.broadcast(x, size - 1)
    assert x.eq(size).all()
    x = negative(0, 4 * size)
    dist.all_gather_into_tensor(x, negative(rank + 1))
    assert torch.equal(x, torch.arange(1.0, size + 1).repeat_interleave(4))
    parts = [negative(0) for _ in range(size)]
    dist.all_gather(parts, negative(rank + 1))
    assert [part[0].item() for part in parts] == list(range(1, size + 1))
    x = negative(0)
    dist.reduce_scatter_tensor(x, negative(rank + 1, 4 * size))
    assert x.eq(total).all()
    x = negative(0, size)
    dist.all_to_all_single(x, negative(rank + 1, size))
    assert torch.equal(x, torch.arange(1.0, size + 1))
    x = negative(0)
    send = dist.isend(negative(rank + 1), to)
    dist.recv(x, source)
    send.wait()
    assert x.eq(source + 1).all()
    x = torch.full((4,), complex(1, rank)).conj()
    dist.group.WORLD.allreduce([x]).wait()  # dist.all_reduce refuses it
    assert x.is_conj() and x.eq(complex(size, -total + size)).all()
    gloo, parts = dist.new_group(backend="gloo"), [torch.zeros(4) for _ in range(size)]
    dist.all_gather(parts, negative(rank + 1), group=gloo)  # as without Weft
    assert [part[0].item() for part in parts] == list(range(1, size + 1))


def tensors_without_their_memory() -> None:
    size = dist.get_world_size()
    freed = torch.ones(4)
    late = freed[1:3]
    freed.untyped_storage().resize_(8)
    for call in (
        lambda: dist.all_reduce(freed),
        lambda: dist.all_gather_into_tensor(torch.zeros(4 * size), freed),
        lambda: dist.broadcast(late, 0),
        lambda: dist.isend(freed, (dist.get_rank() + 1) % size),
    ):
        with pytest.raises(RuntimeError, match="has a storage of only 8 bytes"):
            call()
    dist.all_reduce(freed[:2])
    assert freed[:2].eq(size).all()


def barrier_of_a_device() -> None:
    dist.barrier(device_ids=[0])


def very_long_timeouts() -> None:
    long = timedelta(days=365 * 1000)
    group = dist.group.WORLD
    options = dist.AllreduceOptions()
    options.timeout = long
    tensor = torch.ones(2)
    group.allreduce([tensor], options).wait(long)
    dist.distributed_c10d._set_pg_timeout(long)
    dist.all_reduce(tensor)
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty(1)
    works = [dist.irecv(got, (rank - 1) % size), dist.isend(torch.ones(1), (rank + 1) % size)]
    for work in works:
        work.wait(long)
    dist.monitored_barrier(timeout=long)
    assert tensor.eq(size * size).all() and got.item() == 1


def in_a_forked_child() -> tuple[list[str], float]:
    """What the child's calls said, and how long the child took to end."""
    read, write = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        said = []
        peer = (dist.get_rank() + 1) % dist.get_world_size()
        for call in (
            lambda: dist.all_reduce(torch.ones(2)),
            lambda: dist.all_reduce(torch.ones(2), async_op=True),
            lambda: dist.isend(torch.ones(2), peer),
            lambda: dist.irecv(torch.ones(2), peer),
            lambda: dist.monitored_barrier(),
        ):
            try:
                call()
                said.append("nothing")
            except RuntimeError as error:
                said.append(str(error).splitlines()[0])
        dist.group.WORLD._get_backend(torch.device("cpu")).abort()
        dist.destroy_process_group()
        os.write(write, "\n".join(said).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read().splitlines()
    _, status = os.waitpid(child, 0)
    took = time.monotonic() - started
    assert status == 0, status
    tensor = torch.ones(2)
    dist.all_reduce(tensor)  # the group is as it was
    assert tensor.eq(dist.get_world_size()).all()
    return said, took


def send_that_times_out(numel: int) -> str:
    """Rank 0 gives up a message that rank 1 does not want yet, and changes its tensor."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    if rank > 1:
        return ""
    if rank == 0:
        tensor = torch.full((numel,), 1.0)
        with pytest.raises(RuntimeError, match="Timed out") as said:
            dist.isend(tensor, 1).wait(timedelta(milliseconds=50))
        tensor.fill_(-1.0)
        store.set("given up", "yes")
        dist.send(torch.full((numel,), 2.0), 1)
        return str(said.value)
    store.wait(["given up"])
    got = torch.empty(numel)
    try:
        dist.recv(got, 0)
    except RuntimeError as error:  # posted while the first message was still announced
        assert "cancelled its send" in str(error)
        dist.recv(got, 0)
    assert got.eq(2.0).all(), got
    return ""


@pytest.mark.parametrize(
    "function",
    [
        overlapping_tensors,
        scattered_from_overlapping_parts,
        sparse_tensors_of_unlike_shapes,
        tensors_with_a_negative_or_a_conjugate_bit,
        tensors_without_their_memory,
        barrier_of_a_device,
        receive_into_a_tensor_that_repeats_itself,
        outputs_that_repeat_themselves,
        all_to_all_with_own_shares_of_unlike_sizes,
        premultiplied_without_loss,
        averages_of_the_largest_integers,
        splits_of_the_same_ranks,
        result_in_a_callback,
        blocks_beside_another_threads_collectives,
        blocks_of_unlike_operations,
    ],
)
def test_is_right(ranks, function):
    ranks.all(function)


def test_batches_do_not_swallow_other_threads_collectives(ranks):
    assert ranks.all(batches_beside_collectives) == [0] * len(ranks)


def test_a_batch_that_raised_leaves_nothing(ranks):
    assert ranks.all(after_a_batch_that_raised) == [[float(len(ranks))] * 2] * len(ranks)


def test_a_coalescing_manager_that_raised_leaves_nothing(ranks):
    wanted = [[float(len(ranks))] * 2] * len(ranks)
    assert ranks.all(after_a_coalescing_manager_that_raised) == wanted


def test_a_message_that_timed_out_does_not_arrive_altered(ranks):
    # More than a rank keeps for another: its bytes wait at the sender.
    assert "the send to rank 1" in ranks.all(send_that_times_out, 80_000_000)[0]


@pytest.mark.parametrize("path", PATHS)
def test_a_rank_that_fails_between_two_steps_ends_the_group(path):
    with Ranks(3, PATHS[path]) as ranks:
        first, *others = ranks.all_fail(failing_between_two_steps)
        assert "memory" in first.message, first.message
        for error in others:
            assert "weft:all_reduce failed on rank 0" in error.message, error.message


def test_blocks_of_wrapped_groups():
    """The wrapper has no coalesced all_gather."""
    with Ranks(2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as ranks:
        ranks.all(blocks_beside_another_threads_collectives, many_all_reduces)


def test_timeouts_of_centuries():
    with Ranks(2) as ranks:
        ranks.all(very_long_timeouts)


@pytest.mark.parametrize("path", PATHS)
def test_a_forked_child_has_no_part_in_the_group(path):
    with Ranks(2, PATHS[path]) as ranks:
        for said, took in ranks.all(in_a_forked_child):
            assert len(said) == 5 and all("forked after the process group" in one for one in said)
            assert took < 5
