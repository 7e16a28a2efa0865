"""Groups that a program drops without destroying them: they end with their last reference."""

from __future__ import annotations

import contextlib
import gc
import os

import torch
import torch.distributed as dist
from waiting import wait_until


def held() -> tuple[int, int]:
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def drop_splits() -> None:
    ranks = list(range(dist.get_world_size()))

    def split(name: str) -> None:
        group = dist.group.WORLD.split_group(ranks, group_name=name)
        ones = torch.ones(4)
        group.allreduce([ones]).wait()
        assert ones.eq(len(ranks)).all()

    split("first")
    before = held()
    for number in range(4):
        split(f"dropped {number}")
    wait_until(lambda: held() <= before, lambda: f"{before} became {held()}")


def test_a_split_that_is_dropped_leaves_nothing(ranks):
    ranks.all(drop_splits)


def drop_with_a_message_pending() -> None:
    """One that nobody holds; the other rank sends it when the group is gone."""
    world, rank = list(range(dist.get_world_size())), dist.get_rank()
    dist.barrier()  # makes the connections that the next one needs
    before = held()
    group = dist.group.WORLD.split_group(world, group_name="with a message")
    tensor = torch.zeros(4)
    if rank == 1:
        group.recv([tensor], 0, 0)
        del group
        wait_until(lambda: held() <= before, lambda: f"{before} became {held()}")
    dist.barrier()
    if rank == 0:
        with contextlib.suppress(RuntimeError):  # rank 1 has said goodbye
            group.send([torch.ones(4)], 1, 0).wait()
    dist.barrier()
    assert tensor.eq(0).all()


def test_a_split_with_a_pending_message_is_let_go(ranks):
    ranks.all(drop_with_a_message_pending)
