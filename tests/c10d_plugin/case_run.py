"""One random case on one rank, from its group to what is found when all is over."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from case_faults import SPECIAL, in_a_child
from case_kinds import CASES, draw_plans
from case_rank import Lane, Outcome, State
from drawn_step import CPU
from waiting import takes, wait_until

FORMS = 30.0  # seconds in which a group has formed, on any machine


def run_case(case: int, seed: int, kind: str, victim: int, at: int, delay: float) -> list[Outcome]:
    """One case on this rank. late() must follow, on all ranks, once all have returned."""
    facts = CASES[kind]
    size = len(State.groups["world"][1])
    if facts.timeout:
        # The ranks may come to it far apart: the case's own timeout counts from the barrier on.
        group = dist.new_group(timeout=timedelta(seconds=max(facts.timeout, FORMS)))
        State.groups["own"] = (group, list(range(size)))
    if kind == "fork":
        return in_a_child(seed)
    members = {name: ranks for name, (_, ranks) in State.groups.items()}
    plans = draw_plans(seed, kind, members)
    steady = kind == "plain"
    lanes = [Lane(n, case, plan, seed, steady) for n, plan in enumerate(plans)]
    if facts.timeout:
        for lane in lanes:
            lane.lags = kind != "centuries"
            lane.prepare_all()
        dist.barrier()  # of the world
        if facts.timeout < FORMS:
            group = State.groups["own"][0]
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=facts.timeout), group)
    first: list[Outcome] = []
    if kind in SPECIAL:
        first = SPECIAL[kind](case, seed, victim)
    trigger = None
    if kind == "abort" and State.rank == victim:
        backend = State.groups["own"][0]._get_backend(CPU)
        trigger = Trigger(lanes[0].base + at + 1, delay, backend.abort)
    if kind == "destroy" and victim in (State.rank, size):
        group = State.groups["own"][0]
        trigger = Trigger(lanes[0].base + at + 1, delay, lambda: dist.destroy_process_group(group))
    threads = [threading.Thread(target=lane.run) for lane in lanes[1:]]
    for thread in threads:
        thread.start()
    lanes[0].run()
    for thread in threads:
        thread.join()
    if trigger is not None:
        trigger.thread.join()
        first += trigger.outcomes
    return first + [outcome for lane in lanes for outcome in lane.outcomes]


class Trigger:
    """Does something when this rank has come to a step, and some time has passed."""

    def __init__(self, number: int, delay: float, action: Callable[[], Any]) -> None:
        self.number, self.delay, self.action = number, delay, action
        self.outcomes: list[Outcome] = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        wait_until(
            lambda: State.progress.get(0, State.rank) >= self.number,
            f"this rank comes to step {self.number}",
            60,
            interval=2e-5,
        )
        takes(self.delay)
        started = time.monotonic()
        try:
            self.action()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.outcomes.append(Outcome(0, -1, "wrong", 0, "abort or destroy", why))
        else:
            took = time.monotonic() - started
            self.outcomes.append(Outcome(0, -1, "right", took, "abort or destroy"))


def late(end: bool = True) -> list[str]:
    """What happened to tensors after their operations had ended; ends the case's own group."""
    found = []
    for prepared, sure in State.held:
        for memory in prepared.memories if sure else ():
            if why := memory.touched():
                found.append(f"{prepared.text}: {why}")
    State.held.clear()
    group, _ = State.groups.pop("own", (None, None))
    if group is not None and end:
        with contextlib.suppress(ValueError, AssertionError):  # the case did it
            dist.destroy_process_group(group)
    gc.collect()
    return found
