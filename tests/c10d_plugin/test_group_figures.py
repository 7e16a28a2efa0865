"""What a process group shows of its collectives while they run."""

from __future__ import annotations

import ctypes
import inspect
import logging
import os
from pathlib import Path

import pytest
from kept_log import keep_log, logged
from ranks import PATHS, Ranks, leave, meet
from waiting import takes, wait_until
from workers import Workers


def shown_while_one_waits(late: int) -> list[str]:
    """What the ranks tell before rank ``late`` comes, as soon as it is the only one they wait for."""
    import torch
    import torch.distributed as dist

    import weft

    group = dist.new_group(group_desc="all")
    if dist.get_rank() == late:
        dist.barrier()
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
    found: list[str] = []
    if dist.get_rank() != late:
        while not any(one.endswith(f"it waits for rank {late}") for one in found):
            found = [str(one) for one in weft.who_waits()]
        dist.barrier()
    work.wait()
    return found


def come() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(2))


def figures():
    import weft

    return weft.metrics().groups, weft.debug_info()


@pytest.mark.parametrize("path", PATHS)
def test_a_collective_that_waits_is_shown_with_the_late_rank(path):
    with Ranks(3, PATHS[path]) as ranks:
        first, _, third = ranks.all(shown_while_one_waits, 1)
        for (line,) in (first, third):
            assert line.startswith("weft:all_reduce, collective 1 of process group '")
            assert "its timeout is 1800 s" in line


def test_figures_of_a_group():
    with Ranks(2) as ranks:
        ranks.all(come)
        groups, info = ranks[0].call(figures)
        ((name, group),) = groups.items()
        assert (group.path, group.collectives) == ("shared memory", 1)
        assert group.seconds > 0
        assert info[f"group.{name}.collectives"] == "1"
        assert info[f"group.{name}.running"] == ""


def come_late(late: int) -> dict[int, float]:
    """Whom this rank has waited for, after collectives to which ``late`` came last."""
    import torch
    import torch.distributed as dist

    import weft

    for _ in range(3):
        if dist.get_rank() == late:
            takes(0.3)  # what a straggler does
        dist.all_reduce(torch.ones(2))
    ((_, group),) = weft.metrics().groups.items()
    return group.waited


@pytest.mark.parametrize("path", PATHS)
def test_the_straggler_is_who_was_waited_for(path):
    with Ranks(3, PATHS[path]) as ranks:
        for rank, waited in enumerate(ranks.all(come_late, 1)):
            if rank != 1:
                assert max(waited, key=waited.get) == 1, waited
                assert waited[1] > 0.5
        assert 'weft_collective_wait_seconds_total{group="0",rank="1"}' in ranks[0].call(text)


def text() -> str:
    import weft

    return weft.metrics_text()


def join_rpc(rank: int, meeting: str, policy: str) -> None:
    import weft

    place = {"rank": rank, "world_size": 2, "init_method": f"{meeting}-rpc"}
    weft.init_rpc(f"worker{rank}", **place, request_policy=policy)


def sit(pipe: str) -> None:
    """Until somebody opens the other end."""
    os.close(os.open(pipe, os.O_RDONLY))  # what rank 1 does


def receive() -> None:
    import torch
    import torch.distributed as dist

    dist.recv(torch.ones(2), 1)


def send() -> None:
    import torch
    import torch.distributed as dist

    dist.send(torch.ones(2), 0)


LATE = {
    "collective": (
        come,
        come,
        "weft:all_reduce, collective 1 of the default process group, runs for",
    ),
    "receive": (receive, send, "weft:recv of the default process group waits for rank 1 for"),
}


@pytest.mark.parametrize("policy", [None, "script", "any"])
@pytest.mark.parametrize("what", LATE)
def test_what_hangs_is_reported_with_what_the_awaited_rank_does(what, policy, tmp_path):
    """Asked over RPC where that is allowed, else through the Store."""
    waits, ends, says = LATE[what]
    lines, first = inspect.getsourcelines(sit)
    line = first + next(number for number, text in enumerate(lines) if "# what rank 1" in text)
    with Ranks(2, {"WEFT_HANG_REPORT": "0.4"}) as ranks:
        if policy is not None:
            for rank, worker in enumerate(ranks):
                worker.start(join_rpc, rank, ranks.meeting, policy)
            for worker in ranks:
                worker.result()
        ranks.all(text)  # so that this module has been imported there
        pipe = str(tmp_path / "pipe")
        os.mkfifo(pipe)
        ranks[1].start(sit, pipe)
        ranks[0].start(waits)
        said = ranks[0].wait_for_output(says)
        (found,) = [text for text in said.splitlines() if says in text]
        if what == "collective":
            assert "; it waits for rank 1; " in found
        who = "worker1" if policy == "any" else "rank 1"
        assert f"; {who}: its main thread is at {Path(__file__).name}:{line} (sit)" in found
        os.close(os.open(pipe, os.O_WRONLY))
        ranks[1].result()
        ranks[1].call(ends)
        ranks[0].result()


def ranks_of_a_group_that_ends() -> list[int]:
    import torch.distributed as dist

    from weft._torch import current

    dist.distributed_c10d._world.pg_group_ranks.pop(dist.group.WORLD)
    return current.ranks_of("0")


def test_a_group_that_ends_meanwhile_has_no_ranks():
    with Ranks(1) as ranks:
        assert ranks[0].call(ranks_of_a_group_that_ends) == []


def hold_the_gil(pipe: str) -> None:
    """In native code, until somebody opens the other end."""
    os.close(ctypes.PyDLL(None).open(pipe.encode(), os.O_RDONLY))


@pytest.mark.parametrize("policy", ["script", "any"])
def test_of_a_rank_that_holds_the_gil_a_report_says_how_to_look(policy, tmp_path):
    pipe = str(tmp_path / "pipe")
    os.mkfifo(pipe)
    with Ranks(2, {"WEFT_HANG_REPORT": "0.4"}) as ranks:
        for rank, worker in enumerate(ranks):
            worker.start(join_rpc, rank, ranks.meeting, policy)
        for worker in ranks:
            worker.result()
        ranks[1].call(text)  # so that this module has been imported there
        ranks[1].start(hold_the_gil, pipe)
        ranks[0].start(come)
        who = "worker1" if policy == "any" else "rank 1"
        said = ranks[0].wait_for_output(f"; {who}: does not answer within ")
        assert "native code holds Python's lock there; look with py-spy dump --pid PID on" in said
        os.close(os.open(pipe, os.O_WRONLY))
        ranks[1].result()
        ranks[1].call(come)
        ranks[0].result()


def start_line() -> str:
    """What this rank has logged of its group, once it came through the queue."""

    def found() -> list[str]:
        return [text for _, level, text in logged() if level == "INFO" and " has joined, " in text]

    wait_until(found, "the line is logged")
    return found()[0]


@pytest.mark.parametrize("path", PATHS)
def test_a_group_says_in_one_line_what_it_runs(path):
    with Workers(2, PATHS[path]) as ranks:
        ranks.all(keep_log, logging.INFO)
        for rank in range(2):
            ranks[rank].start(meet, rank, 2, ranks.meeting, 30.0, "weft")
        for rank in range(2):
            ranks[rank].result()
        for rank, line in enumerate(ranks.all(start_line)):
            assert line.startswith(
                f"the default process group: rank {rank} of 2 has joined, collectives by "
            ), line
            for part in ("weft ", "torch ", "key shared through the Store", "encryption auto"):
                assert part in line, line
            shared = "off" if PATHS[path] else "on"
            assert f"shared memory {shared}" in line
        ranks.all(leave)
