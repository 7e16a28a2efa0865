"""One case: a workload on a fleet, a fault at a random moment, and what is not as it must be."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import members
import workloads
from faults import Cost, Fault, Kill
from fleet import Fleet, where_all_are
from invariants import SOON, Baseline, ended, joined_together, released
from waiting import takes
from workers import WorkerDied, WorkerError

ENDS = 15.0  # seconds after a fault by which every operation has ended
OF_VICTIM = 1 << 19  # the victim's own operations have these numbers


@dataclass
class Result:
    """What a case found, and its figures."""

    text: str
    found: list[str] = field(default_factory=list)
    operations: int = 0
    errors: int = 0
    killed: int = 0
    hung: bool = False
    waits: list[float] = field(default_factory=list)  # from the fault to each error, seconds


def run_case(fleet: Fleet, kind: str, fault: Fault, seed: int, thorough: bool = True) -> Result:
    """`thorough`: also waits until all memory has come back. Unless the fault is one of all workers,
    or the case hung, the fleet is whole again afterwards."""
    rng = random.Random(seed)
    result = Result(f"seed {seed}: {kind} under {fault}")
    try:
        _run(fleet, kind, fault, rng, thorough, result)
    except (WorkerDied, WorkerError, TimeoutError, ConnectionError) as error:
        result.found.append(f"{type(error).__name__}: {error}")
        result.hung = result.hung or isinstance(error, TimeoutError)
    if died := fleet.ends():
        result.found.insert(0, died)
    if result.hung:
        result.found.append(where_all_are(fleet))
    return result


def _run(
    fleet: Fleet, kind: str, fault: Fault, rng: random.Random, thorough: bool, result: Result
) -> None:
    ledger = fleet.new_ledger()
    baseline = Baseline([fleet.caller, fleet.witness]) if thorough else None
    local = kind == "pipe"  # of one process: the fault is this process's
    caller = fleet.victim if local else fleet.caller
    caller.call(workloads.begin, kind, ["worker1", "worker2"], ledger)
    if not local:
        peers = ["worker2", "worker0"]
        fleet.victim.call(workloads.begin, kind, peers, ledger, OF_VICTIM)
    if not caller.call(workloads.progress, 12, 20.0):
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
    if fault.cost is Cost.NOTHING and not caller.call(workloads.progress, 12, ENDS):
        result.found.append("no progress after it was over")
        result.hung = True
    _stop(fleet, kind, fault, caller, began, result)
    if fault.of_all:
        return  # and the fleet is at its end
    if fault.cost is not Cost.NOTHING:
        fleet.replace_victim()
    if thorough and not result.hung:
        if not local:
            result.found += released([fleet.caller, fleet.witness])
        result.found += joined_together(fleet)
        result.found += baseline.back() if baseline else []


def _stop(fleet: Fleet, kind: str, fault: Fault, caller, began: float, result: Result) -> None:
    """Ends the workloads, and looks at what became of each operation."""
    alive = not isinstance(fault, Kill)
    both = [caller] + ([fleet.victim] if alive and caller is not fleet.victim else [])
    for worker in both:
        worker.start(workloads.stop, ENDS)
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


def draw(seed: int, faults: list[type[Fault]]) -> tuple[str, Fault]:
    """A workload and a fault that fit each other."""
    rng = random.Random(seed * 7919)
    kinds = list(workloads.OPERATIONS)
    while True:
        kind, chosen = rng.choice(kinds), rng.choice(faults)
        fault = chosen(rng)
        if kind == "pipe" and (fault.proxied or isinstance(fault, Kill)):
            continue  # it sends nothing
        return kind, fault


__all__ = ["ENDS", "SOON", "Result", "draw", "run_case"]
