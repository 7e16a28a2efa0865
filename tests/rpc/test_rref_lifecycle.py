"""The RRef ledger: who holds what, and that nothing of a lost worker stays behind."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from rref_workers import (
    Group,
    act_at_random,
    ask_in_vain,
    call_on,
    count_groups,
    drop,
    drop_all,
    give,
    give_own,
    give_to_use,
    held_of,
    hold_gated,
    hold_new,
    hold_script,
    hold_with_autograd,
    join,
    leave,
    loss_of,
    metric,
    open_gate,
    remote_then_here,
    report,
    resident_bytes,
    to_here,
)
from waiting import wait_until
from workers import BOUND, WorkerError, Workers

SOON = 20.0  # the bound of what must not wait for a timeout of calls (60 s) or of shutdown (100 s)
SCHEDULES = int(os.environ.get("RREF_SCHEDULES", "20"))
ALARMS = (
    "Error occurred when deleting",
    "Timed out waiting for pending",
    "Inconsistent states",
)


def owned(group: Group, rank: int) -> list:
    """The rows of the values that this worker owns and others refer to."""
    return [row for row in group[rank].call(report) if row.owner == f"worker{rank}"]


def free_memory() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def test_the_memory_of_a_killed_holder_comes_back() -> None:
    total = 1 << (30 if free_memory() > 6 << 30 else 28)
    with Group(2) as group:
        before = group[0].call(resident_bytes)
        group[1].call(hold_new, "worker0", 16, total // 16 // 4)
        rows = owned(group, 0)
        assert sum(row.bytes for row in rows) == total
        assert {row.holders for row in rows} == {("worker1",)}
        assert group[0].call(resident_bytes) - before > 0.9 * total
        group[1].kill()
        wait_until(lambda: not owned(group, 0), "the forks of the killed worker are released", SOON)
        wait_until(
            lambda: group[0].call(resident_bytes) - before < 0.2 * total,
            "the owner's memory has come back",
            SOON,
        )
        assert group[0].call(metric, "agent.rref_forks_released") == 16
        assert group[0].call(leave) < SOON


def test_a_holder_that_leaves_without_a_word_is_forgotten() -> None:
    with Group(3) as group:
        group[1].call(hold_new, "worker0", 3)
        group[1].call(leave, graceful=False)
        wait_until(
            lambda: not owned(group, 0), "the forks of the worker that left are released", SOON
        )


def test_the_report_names_types_holders_and_sizes() -> None:
    with Group(3) as group:
        group[1].call(hold_new, "worker0", 1, 1000)
        group[1].call(hold_script, "worker0")
        group[1].call(hold_with_autograd, "worker0")
        group[1].call(give, "worker2", 0)
        group[0].call(give_own, "worker2", 5)
        rows = owned(group, 0)
        assert Counter((row.type, row.holders, row.bytes) for row in rows) == Counter(
            [
                ("Tensor", ("worker1", "worker2"), 4000),
                ("Tensor", ("worker1",), 12),
                ("Tensor", ("worker1",), 12),
                ("Tensor", ("worker2",), 20),
            ]
        )
        assert all(0 <= row.age < BOUND for row in rows)
        references = group[2].call(report)
        assert [(row.owner, row.holders, row.bytes) for row in references] == [
            ("worker0", ("worker2",), None)
        ] * 2
        assert {row.id for row in references} < {row.id for row in rows}
        group.all(drop_all)
        wait_until(lambda: not any(group.all(report)), "nothing is left to report")


def test_the_report_needs_a_group() -> None:
    import weft

    with pytest.raises(RuntimeError, match="init_rpc"):
        weft.rref_report()


def test_repeated_messages_are_acknowledged_and_do_nothing() -> None:
    repeats = {"RREF_FORK_REQUEST": 2, "RREF_CHILD_ACCEPT": 2, "RREF_USER_DELETE": 2}
    with Group(3, faults={"messages_to_repeat": repeats}) as group:
        group[1].call(hold_new, "worker0", 1)
        group[1].call(give, "worker2")
        assert owned(group, 0)[0].holders == ("worker1", "worker2")
        group[1].call(drop_all)
        wait_until(lambda: owned(group, 0)[0].holders == ("worker2",), "one holder is left")
        assert group[2].call(to_here) == 10
        group[2].call(drop_all)
        wait_until(lambda: not owned(group, 0), "no holder is left")
        # Two copies of the fork request, and of each of the two deletions that can be told apart.
        wait_until(
            lambda: group[0].call(metric, "agent.rref_repeats_ignored") >= 4, "repeats are counted"
        )
        wait_until(
            lambda: group[1].call(metric, "agent.rref_repeats_ignored") >= 2, "repeats are counted"
        )
        group.all(leave)
        for word in ("repeated message", *ALARMS):
            assert word not in group.outputs()


def test_a_reference_passed_on_outlives_its_parent() -> None:
    with Group(3) as group:
        group[1].call(hold_new, "worker0", 1)
        group[1].call(give, "worker2")
        group[1].kill()
        wait_until(
            lambda: owned(group, 0)[0].holders == ("worker2",), "worker1's fork is released", SOON
        )
        assert group[2].call(to_here) == 10
        assert group[2].call(call_on) == 10
        group[2].call(drop_all)
        wait_until(lambda: not owned(group, 0), "the last fork is gone")


def test_what_was_on_its_way_to_a_killed_worker_is_let_go() -> None:
    with Group(3) as group:
        group[1].call(hold_new, "worker0", 1)
        group[2].stop()
        group[1].call(give, "worker2", wait=False)
        group[2].kill()
        group[1].call(drop_all)
        wait_until(lambda: not owned(group, 0), "neither parent nor child is left", SOON)
        group[1].start(leave)
        assert group[0].call(leave) < SOON
        assert group[1].result() < SOON


def test_a_remote_call_that_still_runs_does_not_bring_a_fork_back() -> None:
    with Group(2) as group:
        group[1].call(hold_gated, "worker0")
        wait_until(
            lambda: group[0].call(metric, "agent.server_active_calls") >= 1, "the function runs"
        )
        group[1].kill()
        wait_until(lambda: "worker1" in group[0].output(), "worker0 has noticed", SOON)
        group[0].call(open_gate)
        wait_until(
            lambda: group[0].call(metric, "agent.rref_forks_released") == 1, "released", SOON
        )
        assert not owned(group, 0)


@pytest.mark.parametrize("owner", ["worker0", "worker1", "worker2"])
def test_a_reference_in_an_answer_that_comes_too_late_is_let_go(owner: str) -> None:
    with Group(3) as group:
        group[1].call(hold_new, owner)
        assert "RPC ran for more than" in group[0].call(ask_in_vain, "worker1")
        group[1].call(open_gate)
        serving = "agent.server_active_calls"
        wait_until(lambda: group[1].call(metric, serving) == 0, "the function ends")
        group[1].call(drop_all)
        wait_until(lambda: not owned(group, int(owner[-1])), "nobody holds the value", SOON)
        assert max(group.all(leave)) < SOON, group.outputs()
        for word in ALARMS:
            assert word not in group.outputs()


def test_references_to_a_lost_owner_fail_with_its_name() -> None:
    with Group(3) as group:
        group[1].call(hold_new, "worker0", 3)
        group[1].call(give, "worker2")
        group[0].kill()
        for rank in (1, 2):
            for use in (to_here, call_on):
                with pytest.raises(WorkerError, match="worker0"):
                    group[rank].call(use)
        with pytest.raises(WorkerError, match="worker0"):
            group[1].call(remote_then_here, "worker0")
        with pytest.raises(WorkerError, match="worker0"):
            group[1].call(give_to_use, "worker2")
        group.all(drop_all)
        assert max(group.all(leave)) < SOON
        for word in ALARMS:
            assert word not in group.outputs()


@pytest.mark.parametrize("end", ["killed", "left"])
def test_an_owner_that_went_from_a_dynamic_group(end: str) -> None:
    with Group(2, dynamic=True) as group:
        group[1].call(hold_new, "worker0", 3)
        if end == "killed":
            group[0].kill()
        else:
            group[0].call(leave, graceful=False)
        wait_until(lambda: group[1].call(loss_of, 0), "worker1 has noticed", SOON)
        with pytest.raises(WorkerError, match="worker0"):
            group[1].call(to_here)
        group[1].call(drop_all)
        assert group[1].call(leave) < SOON
        for word in ALARMS:
            assert word not in group[1].output()


def test_leaks_are_named_at_shutdown() -> None:
    with Group(2) as group:
        group[1].call(hold_new, "worker0", 12)
        with pytest.raises(WorkerError, match="Leaking RRef"):
            group[0].call(leave, graceful=False, ignore_leaks=False)
        output = group[0].output()
        assert output.count("leaks a value of type Tensor") == 10
        assert "still referred to by 'worker1'" in output
        assert "leaks 2 more values" in output


def test_a_later_group_of_the_same_processes_releases_its_values() -> None:
    with Group(3) as group:
        for life in range(3):
            if life > 0:
                for rank, worker in enumerate(group):
                    worker.start(join, rank, 3, f"{group.meeting}{life}")
                for worker in group:
                    worker.result()
            group[1].call(hold_new, "worker0", 3)
            group[1].call(give, "worker2")
            assert {row.holders for row in owned(group, 0)} == {
                ("worker1",),
                ("worker1", "worker2"),
            }
            group[1].call(drop_all)
            group[2].call(drop_all)
            wait_until(lambda: not owned(group, 0), "the owner's values are released", SOON)
            assert max(group.all(leave)) < SOON, group.outputs()


def test_leaks_that_do_not_matter_are_not_named() -> None:
    with Group(2) as group:
        group[1].call(hold_new, "worker0", 1)
        group[0].call(leave, graceful=False)
        assert "leaks a value" not in group[0].output()


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_random_programs_of_four_workers(seed: int) -> None:
    """At rest, each owner's report names exactly who holds references, and no lost worker."""
    chosen = random.Random(seed)
    names = [f"worker{rank}" for rank in range(4)]
    with Group(4) as group:
        living = set(range(4))
        for phase in range(3):
            for rank in living:
                peers = [name for name in names if name != names[rank]]
                group[rank].start(act_at_random, 100 * seed + 10 * phase + rank, peers, 12)
            if phase == 1:
                victim = chosen.randrange(4)
                group[victim].kill()
                living.remove(victim)
            for rank in living:
                group[rank].result()
        wait_until(lambda: at_rest(group, living), "reports and references agree")
        for rank in living:
            group[rank].call(drop_all)
        wait_until(lambda: not any(owned(group, rank) for rank in living), "nothing is left", SOON)
        assert max(group.all(leave)) < SOON, group.outputs()
        for word in ALARMS:
            assert word not in group.outputs()


def at_rest(group: Group, living: set[int]) -> bool:
    for owner in living:
        reported = Counter(
            {
                (row.id, holder): row.holders.count(holder)
                for row in owned(group, owner)
                for holder in row.holders
            }
        )
        held: Counter = Counter()
        for rank in living - {owner}:
            for value, count in group[rank].call(held_of, f"worker{owner}").items():
                held[value, f"worker{rank}"] += count
        if reported != held:
            return False
    return True


def test_a_reference_of_a_former_group_is_ended() -> None:
    """Another process has its owner's rank by then, and gives its first value the same id."""
    with Workers(3) as workers:
        for rank, worker in enumerate(workers[:2]):
            worker.start(join, rank, 2, workers.meeting)
        for worker in workers[:2]:
            worker.result()
        workers[1].call(give_own, "worker0", 5)
        assert workers[0].call(to_here, 0) == 5
        for worker in workers[:2]:
            worker.call(leave, graceful=False)
        workers[2].call(count_groups, 1)
        for rank, worker in enumerate((workers[0], workers[2])):
            worker.start(join, rank, 2, workers.meeting)
        for worker in (workers[0], workers[2]):
            worker.result()
        workers[2].call(give_own, "worker0", 7)
        assert "has been deleted" in workers[0].fails(to_here, 0).message
        workers[0].call(drop, 0)
        assert workers[0].call(to_here, 0) == 7
