"""Groups that a program drops without destroying them: they end with their last reference."""

from __future__ import annotations

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
