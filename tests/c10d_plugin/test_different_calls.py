"""Ranks that call different operations: each gets an error that names both calls."""

from __future__ import annotations

import inspect
import threading
import time

import pytest
from ports import free_port
from ranks import PATHS, Ranks
from waiting import wait_until


@pytest.fixture(params=PATHS)
def path(request):
    return PATHS[request.param]


def mismatched_call() -> None:
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4))
    else:
        dist.broadcast(torch.ones(4), 0)


def moved_as_another_type() -> None:
    """Both have one byte an element, and neither has arithmetic. The root learns of it in the barrier."""
    import torch
    import torch.distributed as dist

    kind = torch.float8_e4m3fn if dist.get_rank() == 0 else torch.float8_e5m2
    dist.broadcast(torch.ones(3).to(kind), 0)
    dist.barrier()


def gathered_as_another_type() -> None:
    import torch
    import torch.distributed as dist

    kind = torch.float8_e4m3fn if dist.get_rank() == 0 else torch.float8_e5m2
    own = torch.ones(3).to(kind)
    dist.all_gather([torch.empty_like(own) for _ in range(dist.get_world_size())], own)


def premultiplied_on_one_rank() -> None:
    import torch
    import torch.distributed as dist

    op = dist.ReduceOp.SUM if dist.get_rank() == 0 else dist._make_nccl_premul_sum(10.0)
    dist.all_reduce(torch.ones(3), op)


def test_different_calls_are_named(path):
    with Ranks(2, path) as ranks:
        texts = [error.message for error in ranks.all_fail(mismatched_call)]
        assert any("broadcast" in text and "reduce" in text for text in texts), texts


@pytest.mark.parametrize(
    "call", [moved_as_another_type, gathered_as_another_type, premultiplied_on_one_rank]
)
def test_calls_that_differ_only_in_what_the_bytes_mean_fail(path, call):
    with Ranks(2, path) as ranks:
        for error in ranks.all_fail(call):
            assert "the ranks called different operations" in error.message, error.message


def other_packs(how: str) -> None:
    """As many bytes on each rank, of tensors of other sizes."""
    import torch
    import torch.distributed as dist

    turn = 1 if dist.get_rank() == 0 else -1
    tensors = [torch.ones(2), torch.ones(3)][::turn]
    outputs = [torch.zeros(4), torch.zeros(6)][::turn]
    if how == "a sparse all_reduce and an all_gather":
        if turn == 1:
            dist.all_reduce(torch.eye(3).to_sparse())
        else:
            dist.all_gather([torch.zeros(3, dtype=torch.int64)] * 2, torch.arange(3))
    elif how == "a list and a tensor" and turn == 1:
        dist.all_reduce(torch.ones(5))
    elif how == "a block of gathers":
        with dist._coalescing_manager():  # the line of the block
            for output, tensor in zip(outputs, tensors, strict=True):
                dist.all_gather_into_tensor(output, tensor)
    else:
        dist.all_reduce_coalesced(tensors)


@pytest.mark.parametrize(
    "how",
    [
        "lists",
        "a list and a tensor",
        "a block of gathers",
        "a sparse all_reduce and an all_gather",
    ],
)
def test_tensors_that_travel_together_are_told_apart(path, how):
    lines, first = inspect.getsourcelines(other_packs)
    block = first + next(n for n, line in enumerate(lines) if "# the line of the block" in line)
    with Ranks(2, path) as ranks:
        for error in ranks.all_fail(other_packs, how):
            assert "the ranks called different operations" in error.message, error.message
            if how == "a block of gathers":
                assert f"at test_different_calls.py:{block}" in error.message, error.message


def from_own_rank(scatters: bool) -> None:
    """Each rank takes itself for the root; whose part is over learns of it in the barrier."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    if scatters:
        dist.scatter(torch.zeros(2), [torch.ones(2)] * size, src=rank)
    else:
        dist.broadcast(torch.ones(2), rank)
    dist.barrier()


@pytest.mark.parametrize("scatters", [False, True], ids=["broadcast", "scatter"])
def test_different_roots_are_an_error_on_all_ranks(path, scatters):
    with Ranks(3, path) as ranks:
        for error in ranks.all_fail(from_own_rank, scatters):
            assert "called different operations" in error.message, error.message


def other_shapes(asynchronous: bool) -> None:
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        work = dist.all_reduce(torch.ones(5), async_op=asynchronous)  # rank 1's line
    else:
        work = dist.all_reduce(torch.ones(2, 2), async_op=asynchronous)  # the others' line
    if work is not None:
        work.wait()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_lines_that_called_different_things_are_named(path, asynchronous):
    lines, first = inspect.getsourcelines(other_shapes)
    own, others = (
        first + next(number for number, line in enumerate(lines) if f"# {text}" in line)
        for text in ("rank 1's line", "the others' line")
    )
    with Ranks(3, path) as ranks:
        for error in ranks.all_fail(other_shapes, asynchronous):
            assert (
                f"in the default process group, rank 1: float32[5] at test_different_calls.py:{own}"
                in error.message
                or f"; rank 1: float32[5] at test_different_calls.py:{own}" in error.message
            ), error.message
            assert f"ranks 0, 2: float32[2, 2] at test_different_calls.py:{others}" in error.message


_works: list[object] = []


def come_with_another_shape() -> None:
    """Until the others can see it."""
    import torch
    import torch.distributed as dist

    import weft

    _works.append(dist.all_reduce(torch.ones(5), async_op=True))
    others = tuple(rank for rank in range(3) if rank != dist.get_rank())
    wait_until(
        lambda: any(one.ranks == others for one in weft.who_waits()), "it waits for both others"
    )


def come_with_own_shape() -> tuple[str, float]:
    """Why that fails, and after how many seconds."""
    began = time.monotonic()
    with pytest.raises(RuntimeError) as error:
        other_shapes(False)
    return str(error.value), time.monotonic() - began


@pytest.mark.parametrize(
    ("stopped", "silent"),
    [(2, "rank 2 does not answer"), (0, "ranks {others} do not answer")],
    ids=["a rank", "the Store's process"],
)
def test_a_rank_that_cannot_say_what_it_called_is_named(stopped, silent):
    with Ranks(3, meeting=f"tcp://127.0.0.1:{free_port()}") as ranks:  # rank 0 serves the Store
        others = [rank for rank in range(3) if rank != stopped]
        ranks[stopped].call(come_with_another_shape)
        ranks[stopped].stop()
        for rank in others:
            ranks[rank].start(come_with_own_shape)
        for rank in others:
            text, seconds = ranks[rank].result()
            assert "called different operations" in text
            assert f"rank {rank}: float32" in text, text
            unheard = ", ".join(str(other) for other in range(3) if other != rank)
            assert text.endswith("; " + silent.format(others=unheard)), text
            assert seconds < 15


def call_after_different_calls() -> list[tuple[str, float]]:
    """What rank 1's later collectives say of a group that ended, and how long each takes."""
    import torch
    import torch.distributed as dist

    calls = (
        lambda: dist.all_reduce(torch.ones(7)),
        lambda: dist.all_reduce(torch.ones(7), async_op=True).wait(),
        dist.barrier,
    )
    with pytest.raises(RuntimeError, match="called different operations"):
        dist.all_reduce(torch.ones(3 + dist.get_rank()))
    said = []
    for call in calls if dist.get_rank() == 1 else ():
        began = time.monotonic()
        with pytest.raises(RuntimeError) as error:
            call()
        said.append((str(error.value), time.monotonic() - began))
    return said


def test_a_group_that_different_calls_ended_fails_at_once():
    with Ranks(2, PATHS["messages"]) as ranks:
        for text, took in ranks.all(call_after_different_calls)[1]:
            assert "called different operations" in text, text
            assert ".py:" not in text, text  # these lines are not what differed
            assert took < 1, took


def differ_where_the_root_is_done() -> str:
    """What this rank says: rank 0 only in its next collective."""
    import torch
    import torch.distributed as dist

    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(2), 0)
        store.set("sent", "yes")
        store.wait(["differed"])
    else:
        store.wait(["sent"])
        threading.Timer(1.0, lambda: store.clone().set("differed", "yes")).start()
    with pytest.raises(RuntimeError, match="called different operations") as error:
        dist.all_reduce(torch.ones(3))  # the line that differed, of rank 1
    return str(error.value)


def test_a_rank_whose_part_was_over_hears_what_differed():
    lines, first = inspect.getsourcelines(differ_where_the_root_is_done)
    line = first + next(i for i, text in enumerate(lines) if "# the line" in text)
    with Ranks(2, PATHS["messages"]) as ranks:
        said = ranks.all(differ_where_the_root_is_done)
    for text in said:
        assert text.endswith(
            f"; in the default process group, rank 1: float32[3] at test_different_calls.py:{line}; "
            "rank 0 had done its part"
        ), text
