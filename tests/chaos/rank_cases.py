"""Cases of process groups: collectives on four ranks, a fault on one, and the survivors' smaller group."""

from __future__ import annotations

import random
import re
import time

import rank_work
from case_processes import Processes
from cases import Result, run_guarded
from faults import Cost, Fault, Kill
from invariants import NAMES, STARVED, Baseline
from paths import OF_RANKS
from waiting import takes
from workers import Worker, WorkerError

ENDS = 15.0


class Ranks(Processes):
    """Processes that form a new group for each case; whoever is killed is replaced."""

    def __init__(self, path: str, size: int = 4) -> None:
        super().__init__(path, OF_RANKS[path], size)
        self.round, self.at = 0, 1
        self.baselines: dict[Worker, Baseline] = {}
        with self.closed_on_failure():
            for member in self.members:
                self._prepare(member)
            for member in self.members:
                member.result()

    def _prepare(self, member: Worker) -> None:
        member.start(rank_work.prepare, self.port, self.network_port)

    @property
    def victim(self) -> Worker:
        return self.members[self.at]

    def replace_killed(self) -> None:
        for rank, member in enumerate(self.members):
            if member.killed:
                self.baselines.pop(member, None)
                self.remove(member)
                self.members[rank] = self.add()
                self._prepare(self.members[rank])
                self.members[rank].result()

    def meet(self) -> dict[int, str]:
        """Forms the group of the next round; of each rank that cannot, why."""
        self.round += 1
        for rank, member in enumerate(self.members):
            member.start(rank_work.meet, rank, self.size, self.round)
        failed = {}
        for rank, member in enumerate(self.members):
            try:
                member.result()
            except WorkerError as error:
                failed[rank] = error.message
        return failed

    def leftovers(self) -> list[str]:
        """What earlier rounds have left: in each group a process has what it had in its first."""
        found = []
        for member in self.members:
            if member in self.baselines:
                found += self.baselines[member].back()
            else:
                self.baselines[member] = Baseline([member])
        return found

    def try_to_join(self) -> tuple[str, float]:
        both = [self.add() for _ in range(2)]  # a group of their own
        for late in both:
            self._prepare(late)
        for late in both:
            late.result()
        for rank, late in enumerate(both):
            late.start(rank_work.try_to_meet, rank)
        said = [late.result() for late in both]
        for late in both:
            self.remove(late)
        return said[0]


def run_rank_case(ranks: Ranks, fault: Fault, seed: int) -> Result:
    rng = random.Random(seed)
    ranks.at = rng.randrange(ranks.size)
    text = f"seed {seed}: collectives ({ranks.name}) under {fault} of rank {ranks.at}"
    result = Result(text, over=fault.of_all)
    return run_guarded(ranks, result, lambda: _run(ranks, fault, rng, seed, result))


def _run(ranks: Ranks, fault: Fault, rng: random.Random, seed: int, result: Result) -> None:
    ranks.replace_killed()
    harmless = fault.cost is Cost.NOTHING
    early = fault.cost is Cost.RESOURCES and rng.random() < 0.5  # before they meet
    if early:
        fault.begin(ranks)
    failed = ranks.meet()
    if not early:
        result.found += ranks.leftovers()
    for rank, why in failed.items():
        result.errors += 1
        _judge_error(fault, ranks.at, rank, why, result)
    if not failed:
        _operate(ranks, fault, early, rng, seed, result)
    result.found += fault.found
    if not harmless:
        ranks.victim.kill()


def _operate(
    ranks: Ranks, fault: Fault, early: bool, rng: random.Random, seed: int, result: Result
) -> None:
    # Between two alone, an error is theirs alone: a third then waits for the one that gave up.
    kinds = rank_work.OF_ALL + (rank_work.OF_TWO if fault.cost is Cost.NOTHING else ())
    for member in ranks.members:
        member.call(rank_work.begin, seed, kinds)
    takes(rng.uniform(0.01, 0.2))
    result.killed = isinstance(fault, Kill)
    if fault.cost is Cost.PEER and not result.killed:
        fault.seconds = rank_work.LIMIT + 1.5  # it has to be noticed
    began = time.monotonic()
    if not early:
        fault.begin(ranks)
    fault.hold()
    fault.end(ranks)
    asked = [member for member in ranks.members if not member.killed]
    for member in asked:
        member.start(rank_work.stop, ENDS, fault.cost is not Cost.PEER)
    survivors = []
    for member in asked:
        report = member.result(ENDS + 10)
        rank = ranks.members.index(member)
        if rank != ranks.at:
            survivors.append(member)
        if report is None:
            result.found.append(f"rank {rank} does not end")
            result.hung = True
            continue
        result.operations += report.right
        _judge(fault, ranks.at, rank, report, began, result)
    if result.killed and not result.hung:
        for member in survivors:
            member.start(rank_work.without, ranks.at)
        for member in survivors:
            if why := member.result(ENDS + 10):
                result.found.append(f"the smaller group: {why}")


def _judge(
    fault: Fault, dead: int, rank: int, report: rank_work.RankReport, began: float, result: Result
) -> None:
    if report.why:
        result.found.append(f"rank {rank}: {report.why}")
    if report.error:
        result.errors += 1
        result.waits.append(report.ended - began)
        _judge_error(fault, dead, rank, report.error, result)
    elif fault.cost is Cost.PEER:
        result.found.append(f"rank {rank} has no error")


def _judge_error(fault: Fault, victim: int, rank: int, error: str, result: Result) -> None:
    """An error that may be, and names whom it should."""
    if fault.cost is Cost.NOTHING:
        result.found.append(f"rank {rank} failed, though nothing was lost: {error}")
    elif rank == victim:  # it sees the others as lost, or says what it has too little of
        if not NAMES.search(error) and not STARVED.search(error):
            result.found.append(f"rank {rank} names neither a rank nor what is short: {error}")
    elif not re.search(rf"ranks? (\d, )*{victim}\b", error) and not fault.of_all:
        result.found.append(f"rank {rank} does not name rank {victim}: {error}")
