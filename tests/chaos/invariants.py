"""What must be so whatever goes wrong; each check returns what is not so, as lines of text.

- Every operation ends, once: rightly, or with an error that names the peer.
- What a callee executed agrees with what its caller saw: once if answered, at most once if not.
- What a lost worker held is released at its owners.
- Descriptors, threads and memory come back.
"""

from __future__ import annotations

import re

import members
from faults import Cost, Fault
from fleet import Fleet
from runs import Report
from waiting import wait_until
from workers import Worker

SOON = 10.0  # seconds for what comes back by itself
NAMES = re.compile(r"worker '?worker\d'? ?|WorkerInfo\(id=\d|Error on Node \d|rank \d|worker\d")
STARVED = re.compile(  # said by Python, torch or the system of the process that has too little
    r"MemoryError|can't allocate memory|not enough memory|[Cc]annot allocate|bad_alloc"
    r"|can't start new thread|Too many open files|no memory|Resource temporarily unavailable"
)
MORE_DESCRIPTORS, MORE_THREADS = 16, 24  # connections and worker threads, which are kept
MORE_BYTES = 96 << 20


def ended(report: Report, fault: Fault, victim: str) -> list[str]:
    """Every operation has ended, once, rightly or with an error that may be."""
    found = [
        f"{o.status} after {o.ended - o.started:.1f} s: {o.text}"
        for o in report.outcomes
        if o.status in ("wrong", "unended")
    ]
    errors = [outcome for outcome in report.outcomes if outcome.status == "error"]
    if fault.cost is Cost.NOTHING:
        found += [f"failed, though nothing was lost: {outcome.text}" for outcome in errors]
    elif fault.cost is Cost.PEER:
        # A stage says whom it has lost, and the victim has lost somebody as well.
        of_any = fault.of_all or report.kind == "pipeline"
        anybody = NAMES if of_any else re.compile(re.escape(victim))
        found += [f"does not name {victim}: {o.text}" for o in errors if not anybody.search(o.text)]
    else:
        found += [
            f"names neither the peer nor what is short: {o.text}"
            for o in errors
            if not NAMES.search(o.text) and not STARVED.search(o.text)
        ]
    return found


def released(owners: list[Worker], bound: float = SOON) -> list[str]:
    """These workers keep nothing any more for operations of others that have ended."""
    found = []
    for owner in owners:
        try:
            wait_until(lambda o=owner: not o.call(members.held_for_others), "", bound, 0.1)
        except AssertionError:
            held = owner.call(members.held_for_others)
            found.append(f"{owner.label} still keeps {len(held)} values: {held[:3]}")
    return found


class Baseline:
    """What the survivors use when nothing is wrong."""

    def __init__(self, workers: list[Worker]) -> None:
        self.before = [(worker, worker.call(members.resources)) for worker in workers]

    def back(self, lost: bool = False, bound: float = SOON) -> list[str]:
        """`lost`: somebody was."""
        found = []
        for worker, before in self.before:
            most = {
                "descriptors": before["descriptors"] + MORE_DESCRIPTORS,
                "threads": before["threads"] + MORE_THREADS,
                "resident": before["resident"] + MORE_BYTES,
                "contexts": before["contexts"],
            }

            def within(worker: Worker = worker, most: dict[str, int] = most) -> bool:
                now = worker.call(members.resources)
                return all(now[name] <= limit for name, limit in most.items())

            try:
                wait_until(within, "", bound, 0.2)
            except AssertionError:
                now = worker.call(members.resources)
                found.append(f"{worker.label} does not get back to {before}: {now}")
        return found


def joined_together(fleet: Fleet) -> list[str]:
    """All reach all."""
    found = []
    for worker in fleet.members:
        for rank in range(fleet.size):
            if why := worker.call(members.reaches, f"worker{rank}"):
                found.append(f"{worker.label} does not reach worker{rank}: {why}")
    return found
