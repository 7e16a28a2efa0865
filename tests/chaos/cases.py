"""One case: a workload on a fleet, a fault at a random moment, and what is not as it must be."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import members
import runs
import workloads
from case_processes import Processes
from faults import Cost, Fault, Kill
from fleet import Fleet
from invariants import SOON, Baseline, ended, joined_together, released
from paths import OF_WORKERS
from waiting import takes
from workers import WorkerDied, WorkerError

ENDS = 15.0  # seconds after a fault by which every operation has ended
OF_VICTIM = 1 << 19  # the victim's own operations have these numbers
WARM = 12  # operations
ABORTED = "cannot allocate memory for thread-local data: ABORT"  # glibc's last word
OF_WARM_UP = 1 << 18  # and those have these


@dataclass
class Result:
    """What a case found, and its figures."""

    text: str
    found: list[str] = field(default_factory=list)
    operations: int = 0
    errors: int = 0
    killed: int = 0
    hung: bool = False
    over: bool = False  # the processes cannot go on
    waits: list[float] = field(default_factory=list)  # from the fault to each error, seconds


def run_guarded(processes: Processes, result: Result, run: Callable[[], None]) -> Result:
    """A case: what ends it early is a finding, and so is a process that has ended by itself."""
    try:
        run()
    except (WorkerDied, WorkerError, OSError) as error:
        outputs = processes.outputs()[-4000:]
        result.found.append(f"{type(error).__name__}: {error}\n{outputs}")
        result.hung = result.hung or isinstance(error, TimeoutError)
    if died := processes.ends():
        result.found.insert(0, died)
        if ABORTED in died:
            result.found, result.hung = [], False
            result.over = True
    if result.hung:
        result.found.append(processes.where_all_are())
    result.over = result.over or bool(result.found)
    return result


def run_case(fleet: Fleet, kind: str, fault: Fault, seed: int, thorough: bool = True) -> Result:
    """`thorough`: also waits until all memory has come back. Unless the case is over for the fleet,
    that is whole again afterwards."""
    rng = random.Random(seed)
    result = Result(f"seed {seed}: {kind} ({fleet.name}) under {fault}", over=fault.of_all)
    return run_guarded(fleet, result, lambda: _run(fleet, kind, fault, rng, thorough, result))


def _run(
    fleet: Fleet, kind: str, fault: Fault, rng: random.Random, thorough: bool, result: Result
) -> None:
    ledger = fleet.new_ledger()
    if kind not in fleet.warm:
        _warm_up(fleet, kind, ledger)
    baseline = Baseline([fleet.caller, fleet.witness]) if thorough else None
    local = kind == "pipe"  # of one process: the fault is this process's
    caller = fleet.victim if local else fleet.caller
    caller.call(runs.begin, kind, ["worker1", "worker2"], ledger)
    if not local:
        peers = ["worker2", "worker0"]
        fleet.victim.call(runs.begin, kind, peers, ledger, OF_VICTIM)
    if not caller.call(runs.progress, 12, 20.0):
        result.found.append("no progress before anything went wrong")
        result.hung = True
        return
    takes(rng.uniform(0, 0.03))
    began = time.monotonic()
    fault.begin(fleet)
    fault.hold()
    fault.end(fleet)
    result.killed = isinstance(fault, Kill)
    result.found += fault.found
    if fault.cost is Cost.NOTHING and not caller.call(runs.progress, 12, ENDS):
        result.found.append("no progress after it was over")
        result.hung = True
    _stop(fleet, kind, fault, caller, began, result)
    if fault.of_all:
        return  # and the fleet is at its end
    if fault.cost is not Cost.NOTHING:
        fleet.replace_victim()
    if thorough and not result.hung:
        result.found += released(fleet.members)
        result.found += joined_together(fleet)
        result.found += baseline.back(fault.cost is not Cost.NOTHING) if baseline else []


def _warm_up(fleet: Fleet, kind: str, ledger: str) -> None:
    """What the first operations of a kind load and make, such as modules and threads, stays."""
    fleet.caller.call(runs.begin, kind, ["worker2", "worker1"], ledger, OF_WARM_UP)
    fleet.caller.call(runs.progress, WARM, ENDS)
    fleet.caller.call(runs.stop, ENDS)
    fleet.warm.add(kind)


def _stop(fleet: Fleet, kind: str, fault: Fault, caller, began: float, result: Result) -> None:
    """Ends the workloads, and looks at what became of each operation."""
    alive = not isinstance(fault, Kill)
    both = [caller] + ([fleet.victim] if alive and caller is not fleet.victim else [])
    for worker in both:
        worker.start(runs.stop, ENDS)
    for worker in both:
        report = worker.result(ENDS + 10)
        mine = worker is caller
        others = "worker1" if mine else "worker"  # the victim sees anybody as lost
        result.found += ended(report, fault, others)
        result.operations += sum(report.counts.values())
        result.errors += report.counts["error"]
        if mine:
            result.waits += [
                outcome.ended - max(began, outcome.started)
                for outcome in report.outcomes
                if outcome.status == "error"
            ]
        if report.counts["unended"]:
            result.hung = True
            result.found.append(report.stacks)
    if fault.cost is Cost.RESOURCES and not result.hung:
        # A peer that was lost meanwhile stays lost, and says so.
        why = fleet.caller.call(members.reaches, "worker1")
        if why and "worker1" not in why:
            result.found.append(f"afterwards, without the victim's name: {why}")


def draw(rng: random.Random, faults: list[type[Fault]]) -> tuple[str, str, type[Fault]]:
    """A workload, a path and a fault that fit each other."""
    while True:
        kind = rng.choice(list(workloads.OPERATIONS))
        fault = rng.choice(faults)
        path = rng.choice([name for name, one in OF_WORKERS.items() if fault.fits(one)])
        if kind == "pipe" and (OF_WORKERS[path].proxied or issubclass(fault, Kill)):
            continue  # it sends nothing
        return kind, path, fault


__all__ = ["ENDS", "SOON", "Result", "draw", "run_case"]
