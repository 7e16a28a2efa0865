"""Cases of process groups: collectives on four ranks, a fault on one, and the survivors' smaller group."""

from __future__ import annotations

import random
import time

import rank_work
from cases import Result
from faults import Cost, Fault, Kill
from fleet import where_all_are
from ports import free_port
from proxy import Network
from waiting import takes
from workers import Worker, WorkerDied, WorkerError, Workers, keep_store, kept_store

ENDS = 15.0
PATHS = {
    "shared memory": {},
    "messages": {"WEFT_SHARED_MEMORY": "0"},
    "tcp": {"WEFT_SHARED_MEMORY": "0", "WEFT_UNIX_SOCKET": "0"},
}


class Ranks(Workers):
    """Processes that form a new group for each case; whoever is killed is replaced."""

    def __init__(self, path: str, size: int = 4) -> None:
        self.path, self.size, self.round = path, size, 0
        self.network = Network() if path == "tcp" else None
        self.port = free_port()
        super().__init__(0, {**kept_store(self.port), **PATHS[path]})
        with self.closed_on_failure():
            self.keeper = self.add()
            self.keeper.call(keep_store, self.port)
            self.members = [self.add() for _ in range(size)]
        self.at = 1

    @property
    def victim(self) -> Worker:
        return self.members[self.at]

    def meet(self) -> None:
        self.round += 1
        network = self.network.port if self.network else 0
        for rank, member in enumerate(self.members):
            if member.killed:
                member.close()
                self._all.remove(member)
                self.members[rank] = self.add()
        for rank, member in enumerate(self.members):
            member.start(rank_work.meet, rank, self.size, self.port, network, self.round)
        for member in self.members:
            member.result()

    def add(self, environment: dict[str, str | None] | None = None) -> Worker:
        self.made = getattr(self, "made", 0) + 1
        self._all.append(Worker(f"process{self.made}", self.folder, {**self.environment}))
        return self._all[-1]

    def close(self) -> None:
        super().close()
        if self.network is not None:
            self.network.close()


def run_rank_case(ranks: Ranks, fault: Fault, seed: int) -> Result:
    rng = random.Random(seed)
    ranks.at = rng.randrange(ranks.size)
    text = f"seed {seed}: collectives ({ranks.path}) under {fault} of rank {ranks.at}"
    result = Result(text)
    try:
        _run(ranks, fault, rng, seed, result)
    except (WorkerDied, WorkerError, TimeoutError, ConnectionError) as error:
        result.found.append(f"{type(error).__name__}: {error}\n{ranks.outputs()[-4000:]}")
        result.hung = result.hung or isinstance(error, TimeoutError)
    if result.hung:
        result.found.append(where_all_are(ranks))
    return result


def _run(ranks: Ranks, fault: Fault, rng: random.Random, seed: int, result: Result) -> None:
    ranks.meet()
    for member in ranks.members:
        member.call(rank_work.begin, seed)
    takes(rng.uniform(0.01, 0.2))
    if fault.cost is not Cost.NOTHING and not isinstance(fault, Kill):
        fault.seconds = rank_work.LIMIT + 1.5  # it has to be noticed
    began = time.monotonic()
    fault.begin(ranks)
    fault.hold()
    fault.end(ranks)
    result.killed = isinstance(fault, Kill)
    harmless = fault.cost is Cost.NOTHING
    asked = [m for m in ranks.members if not m.killed]
    for member in asked:
        member.start(rank_work.stop, ENDS, harmless)
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
    if not harmless:
        ranks.victim.kill()


def _judge(
    fault: Fault, dead: int, rank: int, report: rank_work.RankReport, began: float, result: Result
) -> None:
    if report.why:
        result.found.append(f"rank {rank}: {report.why}")
    if not report.error:
        if fault.cost is Cost.PEER:
            result.found.append(f"rank {rank} has no error")
        return
    result.errors += 1
    result.waits.append(report.ended - began)
    named = f"rank {dead}" in report.error or rank == dead or fault.of_all
    if fault.cost is Cost.NOTHING:
        result.found.append(f"rank {rank} failed, though nothing was lost: {report.error}")
    elif not named:
        result.found.append(f"rank {rank} does not name rank {dead}: {report.error}")
