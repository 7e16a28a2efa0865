"""Groups of fixed size that form through a Store which remembers earlier processes: of a worker that
ended before the group had formed, or of a whole group."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch.distributed as dist
from ports import free_port
from waiting import wait_until
from workers import Workers, join, keep_store, kept_store

SOON = 15


class Forming(Workers):
    """Workers that meet through a store in a process of its own, which nobody kills."""

    def __init__(self, count: int) -> None:
        self.port = free_port()
        super().__init__(count, kept_store(self.port))
        with self.closed_on_failure():
            self.keeper = self.add()
            self.keeper.call(keep_store, self.port)
        self.store = dist.TCPStore("127.0.0.1", self.port, is_master=False)

    def enter(self, worker, rank: int, world: int, meeting: str = "", **options):
        """Returns once its record is in the store."""
        options = {"rpc_timeout": 20, **options}
        worker.start(join, rank, world, f"tcp://127.0.0.1:{self.port}", **options)
        key = f"rpc_prefix_0/weft/{meeting}member/{rank}"
        wait_until(lambda: self.store.check([key]), f"{key} is in the store")
        return worker

    def again(self, rank: int, world: int, meeting: str = "again/1/"):
        return self.enter(self.add(), rank, world, meeting)


def ask_all(world: int) -> list[int]:
    """Calls everybody, which works at once where all have met."""
    import torch.distributed.rpc as rpc

    return [rpc.rpc_sync(f"worker{rank}", os.getpid, timeout=10) for rank in range(world)]


def check_all_met(workers) -> None:
    pids = [worker.result(SOON) for worker in workers]
    for worker in workers:
        assert worker.call(ask_all, len(workers)) == pids


@pytest.mark.parametrize("dies", [0, 1])
def test_a_worker_that_dies_before_the_group_has_formed_is_started_again(dies):
    with Forming(2) as group:
        for rank in range(2):
            group.enter(group[rank], rank, 3)
        group[dies].kill()
        back = group.again(dies, 3)
        last = group.again(2, 3)
        there = [group[0], group[1], last]
        there[dies] = back
        check_all_met(there)


def test_all_who_waited_die_and_one_who_was_not_there_comes_first():
    with Forming(3) as group:
        for rank in range(2):
            group.enter(group[rank], rank, 3)
        for rank in range(2):
            group[rank].kill()
        # It takes the records of the dead for those of workers that wait, until one is back.
        last = group.enter(group.add(), 2, 3)
        check_all_met([group.again(0, 3), group.again(1, 3), last])


def test_two_successors_of_one_worker_are_refused_and_so_is_who_waits():
    with Forming(2) as group:
        for rank in range(2):
            group.enter(group[rank], rank, 3)
        group[1].kill()
        both = [group.add(), group.add()]
        for worker, name in zip(both, ("worker1", "other"), strict=True):
            place = f"tcp://127.0.0.1:{group.port}"
            worker.start(join, 1, 3, place, name=name, rpc_timeout=20)
        for worker in (group[0], *both):
            assert "two workers were started with rank 1" in worker.failure(SOON).message


def form(group: Forming, world: int) -> None:
    for rank in range(world):
        group.enter(group[rank], rank, world)
    check_all_met(group[:world])


@pytest.mark.parametrize("world", [2, 3, 1], ids=["as-many", "more", "fewer"])
def test_workers_that_all_died_meet_anew(world):
    """Nobody's init_rpc returns before all are there."""
    with Forming(2) as group:
        form(group, 2)
        for rank in range(2):
            group[rank].kill()
        back = [group.again(rank, world) for rank in reversed(range(world))]
        check_all_met(back[::-1])


def test_a_group_that_lives_takes_no_worker_of_a_larger_one():
    with Forming(2) as group:
        form(group, 2)
        error = group.enter(group.add(), 2, 3).failure(SOON)
        assert "were started with different world_size" in error.message
        assert group[0].call(ask_all, 2)[0] == group[0].pid


def test_a_group_that_could_not_form_forms_when_it_is_started_again():
    with Forming(2) as group:
        for rank in range(2):
            group.enter(group[rank], rank, 2, name="same")
        for rank in range(2):
            assert "'same' is not unique" in group[rank].failure(SOON).message
            group[rank].kill()
        check_all_met([group.again(0, 2), group.again(1, 2)])


def test_a_worker_that_gave_up_tries_again_in_the_same_process():
    with Forming(2) as group:
        group.enter(group[0], 0, 2, rpc_timeout=1)
        assert "gave up waiting for rank 1 of 2" in group[0].failure(SOON).message
        group.enter(group[0], 0, 2, "again/1/")
        group.enter(group[1], 1, 2, "again/1/")
        check_all_met(group[:2])


LIVES = """
import os, sys, time
from pathlib import Path
import torch.distributed.rpc as rpc
import weft

life, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
begun = Path(sys.argv[1]) / "rank 1 begins"
if life == 0 and rank == 1 and sys.argv[2] == "before":
    os._exit(1)
if life == 1 and rank == 0:
    while not begun.exists():
        time.sleep(0.01)
    time.sleep(1)  # a late rank
if life == 1 and rank == 1:
    begun.touch()
weft.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_timeout=30)
other = rpc.rpc_sync(f"worker{1 - rank}", os.getpid)
if life == 0:
    os._exit(1) if rank == 1 else time.sleep(60)
rpc.shutdown()
print(f"rank {rank} of life {life} is done", flush=True)
"""


@pytest.mark.parametrize("dies", ["before", "after"])
def test_what_torchrun_starts_again_forms_a_new_group(tmp_path, dies):
    """Rank 1 of the first life ends before the group has formed, or after."""
    program = tmp_path / "lives.py"
    program.write_text(LIVES)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launch, "--max-restarts=1", program, tmp_path, dies],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert f"rank {rank} of life 1 is done" in done.stdout
    assert "without a missing worker" not in done.stderr
