"""Random sequences of a process group's operations, run on real ranks, with what goes wrong in them.

The rule under test: an operation that says it succeeded has the right results, has changed nothing
else, and is through with its tensors; one that cannot raises within its time. What each rank saw comes
back as Outcomes, which judge() in the test's process looks at.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence

from case_kinds import CASES, Kind, kind_of
from case_rank import Outcome, Progress, meet
from case_run import late, run_case
from waiting import takes, wait_until
from watched_memory import seed_of
from workers import WorkerDied, Workers

PATHS = {
    "shared memory": {},
    "messages": {"WEFT_SHARED_MEMORY": "0"},
    "hosts": {},
}


class CaseRanks(Workers):
    """Worker processes in one group and several subgroups, for many cases."""

    def __init__(self, size: int, path: str, hosts: Sequence[str] = ()) -> None:
        super().__init__(size, PATHS[path])
        self.path = path
        self.progress = Progress(self.folder / "progress", create=True)
        with self.closed_on_failure():
            for rank, worker in enumerate(self):
                host = hosts[rank * len(hosts) // size] if hosts else ""
                worker.start(meet, rank, size, str(self.folder), host)
            paths = {worker.result() for worker in self}
            assert len(paths) == 1, paths
            assert path in str(paths), paths


class Runner:
    """Runs cases on sets of ranks that it keeps while they are well."""

    PER_SET = 250  # cases; then new processes

    def __init__(self, path: str, hosts: Sequence[str] = ()) -> None:
        self.path, self.hosts = path, hosts
        self.sets: dict[int, CaseRanks] = {}
        self.used: dict[int, int] = {}
        self.number = 0
        self.counts: dict[str, int] = {}

    def close(self) -> None:
        for size in list(self.sets):
            self.drop(size)

    def drop(self, size: int) -> None:
        if (ranks := self.sets.pop(size, None)) is not None:
            ranks.close()

    def ranks(self, size: int) -> CaseRanks:
        if self.used.get(size, 0) >= self.PER_SET:
            self.drop(size)
        if size not in self.sets:
            self.sets[size] = CaseRanks(size, self.path, self.hosts)
            self.used[size] = 0
        self.used[size] += 1
        return self.sets[size]

    def run(self, seed: int, kind: str | None = None) -> list[str]:
        """One case; what was wrong in it."""
        kind = kind or kind_of(seed)
        rng = random.Random(seed_of("parent", seed))
        size = 4 if self.hosts else rng.choice((2, 2, 3, 3, 4))
        victim = rng.randrange(size + 1) if kind == "destroy" else rng.randrange(size)
        at, delay = rng.choice((0, 0, 1, 2)), rng.choice((0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2))
        delay *= rng.random() * 2
        self.number += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        head = f"seed {seed}: {kind}, {size} ranks, {self.path}, victim {victim}"
        ranks = self.ranks(size)
        try:
            for worker in ranks:
                worker.start(run_case, self.number, seed, kind, victim, at, delay)
            found = self.finish(ranks, kind, victim, at, delay)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        if found or CASES[kind].ends_ranks:
            self.drop(size)
        return [f"{head}: {text}" for text in found]

    def finish(self, ranks: CaseRanks, kind: str, victim: int, at: int, delay: float) -> list[str]:
        facts = CASES[kind]
        away = victim if kind in ("stop", "kill") else None
        if away is not None:
            # A plan may have fewer steps: then at its end.
            self.await_step(ranks, away, (self.number << 12) + at + 1)
            takes(delay)
            if kind == "kill":
                ranks[away].kill()
            else:
                ranks[away].signal(signal.SIGSTOP)
        seen: dict[int, list[Outcome]] = {}
        wait = 120.0 if not facts.timeout else min(facts.limit, 60.0) * 6 + 10
        for rank, worker in enumerate(ranks):
            if rank != away:
                seen[rank] = worker.result(wait)
        if kind == "stop":
            ranks[victim].signal(signal.SIGCONT)
            seen[victim] = ranks[victim].result(wait)
        found = judge(seen, facts, away)
        alive = [worker for rank, worker in enumerate(ranks) if kind != "kill" or rank != victim]
        for worker in alive:
            worker.start(late, kind != "kill")
        for worker in alive:
            found += worker.result(60.0)
        return found

    def await_step(self, ranks: CaseRanks, rank: int, number: int) -> None:
        def there() -> bool:
            if ranks[rank].exit_code is not None:
                raise WorkerDied(f"rank {rank} ended: {ranks[rank].output()}")
            return ranks.progress.get(0, rank) >= number or ranks[rank].has_answered_within(0)

        wait_until(there, f"rank {rank} comes to its step", 60, interval=2e-5)


def judge(seen: dict[int, list[Outcome]], facts: Kind, away: int | None) -> list[str]:
    """What is wrong with what the ranks saw."""
    found = []
    for rank, outcomes in seen.items():
        for o in outcomes:
            head = f"rank {rank}, operation {o.index} of lane {o.lane} on {o.group}: {o.text}"
            if o.status == "wrong":
                found.append(f"{head}: OK, but {o.why}")
            elif o.status == "raised" and not facts.fails:
                found.append(f"{head}: raised {o.why[:600]}")
            if o.seconds > facts.limit and rank != away:
                found.append(f"{head}: took {o.seconds:.1f} s, {o.status} {o.why[:300]}")
    return found
