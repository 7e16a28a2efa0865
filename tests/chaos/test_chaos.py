"""The short form: a handful of faults under a handful of workloads. The long one is `./dev chaos`.

WEFT_TEST_SEED chooses the seed, which is in each failure.
"""

from __future__ import annotations

import os
import random
import time

import faults
import invariants
import members
import pytest
import runs
import wall_clock
import workloads
from cases import run_case
from fleet import Fleet
from ports import free_port
from rank_cases import Ranks, run_rank_case
from workers import Workers, keep_store

SEED = int(os.environ.get("WEFT_TEST_SEED", "1"))
OF_WORKERS = {
    "unix": [
        ("call", faults.Stop),
        ("rref", faults.Kill),
        ("nested", faults.Kill),
        ("autograd", faults.Kill),
        ("pipeline", faults.Kill),
        ("published", faults.NoThreads),
        ("call", faults.FewDescriptors),
        ("pipe", faults.Stop),
    ],
    "tcp": [
        ("call", faults.Reset),
        ("rref", faults.BlackHole),
        ("published", faults.Delay),
        ("call", faults.Damage),
        ("call", faults.Kill),
    ],
    "tls": [("call", faults.Reset), ("rref", faults.Damage), ("published", faults.Kill)],
    "clocks": [(kind, faults.ClockJumps) for kind in ("nested", "rref")],
}
OF_RANKS = {
    "shared memory": [faults.Kill, faults.Stop, faults.NoThreads, faults.BrokenKeyFile],
    "tcp": [faults.Kill, faults.Reset, faults.FewDescriptors, faults.Stop],
}


def drawn(fault: type[faults.Fault]) -> faults.Fault:
    return fault(random.Random(SEED))


@pytest.mark.parametrize("path", OF_WORKERS)
def test_calls_under_faults(path):
    """One fleet lives through all of them."""
    if path == "clocks" and wall_clock.COMPILER is None:
        pytest.skip("no C compiler")
    with Fleet(path) as fleet:
        for kind, fault in OF_WORKERS[path]:
            result = run_case(fleet, kind, drawn(fault), SEED)
            assert not result.found, f"{result.text}:\n" + "\n".join(result.found)
            assert result.operations > 0
        if fleet.network is not None:
            assert fleet.network.connections_made > 0, "nothing went through the proxies"
            assert fleet.network.resets > 0, "no connection was reset"
        if fleet.path.clocks:
            fleet.victim.jump(3600)
            assert 3000 < fleet.victim.call(members.wall_clock) - time.time() < 4000


@pytest.mark.parametrize("path", OF_RANKS)
def test_collectives_under_faults(path):
    with Ranks(path) as ranks:
        for number, fault in enumerate(OF_RANKS[path]):
            result = run_rank_case(ranks, drawn(fault), SEED + number)
            assert not result.found, f"{result.text}:\n" + "\n".join(result.found)


def test_a_key_file_on_a_dead_disk(tmp_path):
    """Reading it gives EIO: the worker does not join, and says which file it was."""
    key = tmp_path / "weft.key"
    key.symlink_to("/proc/self/mem")  # a regular file, by its mode; nothing can be read at 0
    with Workers(2) as workers:
        port = free_port()
        workers[0].call(keep_store, port)
        error, took = workers[1].call(members.try_to_join, 0, 1, port, auth_key_file=str(key))
        assert str(key) in error and "Input/output error" in error, error
        assert took < faults.JOINS_IN_VAIN


@pytest.mark.parametrize("how", ["gone", "fifo", "dead disk", "slow disk", "half written"])
def test_a_successor_that_cannot_read_the_key_file_says_so(how, keyed):
    fault = drawn(faults.BrokenKeyFile)
    fault.how = how
    result = run_case(keyed, "call", fault, SEED, thorough=False)
    assert not result.found, f"{result.text}:\n" + "\n".join(result.found)


@pytest.fixture(scope="module")
def keyed():
    with Fleet("unix") as fleet:
        yield fleet


# What the harness itself must find.


def test_a_hanging_operation_is_reported(monkeypatch):
    """An operation that does not end is a hang, with the stacks of its threads."""
    monkeypatch.setattr("cases.ENDS", 1.0)
    monkeypatch.setattr(Fleet, "where_all_are", lambda fleet: "")
    with Fleet("unix") as fleet:
        fleet.caller.call(slip_in_a_hang)
        result = run_case(fleet, "call", drawn(faults.Kill), SEED, thorough=False)
    assert result.hung
    assert any("unended" in line for line in result.found)
    assert any(("hang" in line and "Thread" in line) or "thread" in line for line in result.found)


def slip_in_a_hang() -> None:
    right = workloads.call

    def hangs(run: runs.Run, number: int) -> str | None:
        if number == 20:
            members.hang()
        return right(run, number)

    workloads.OPERATIONS["call"] = hangs


def test_an_operation_that_runs_twice_is_reported():
    with Fleet("unix") as fleet:
        fleet.victim.call(execute_twice)
        result = run_case(fleet, "call", drawn(faults.Stop), SEED, thorough=False)
    assert any("executed 2 times" in line for line in result.found), result.found


def execute_twice() -> None:
    once = workloads.executed

    def twice(path: str, number: int) -> None:
        once(path, number)
        once(path, number)

    workloads.executed = twice


def test_an_error_without_a_name_is_reported():
    report = runs.Report("call")
    report.outcomes.append(runs.Outcome(1, "error", "RuntimeError: broken", 0.0, 0.1))
    assert invariants.ended(report, drawn(faults.Kill), "worker1")
    report.outcomes[0] = runs.Outcome(1, "error", "worker 'worker1' (rank 1) is lost", 0.0, 0.1)
    assert not invariants.ended(report, drawn(faults.Kill), "worker1")
    assert invariants.ended(report, drawn(faults.Stop), "worker1"), "nothing was lost"
