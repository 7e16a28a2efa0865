"""What kinds of cases there are, and which operations each has."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collective_steps import AT_ONCE, KINDS, MOVEMENTS, REDUCTIONS
from drawn_step import CENTURIES, Step
from watched_memory import seed_of


@dataclass(frozen=True)
class Kind:
    """A kind of case: how its group is made, and how long its operations may take."""

    share: int  # how many of a hundred cases
    timeout: float = 0.0  # of a group of its own; 0: on groups that stay
    limit: float = 60.0  # seconds by which an operation has ended
    fails: bool = True  # operations may raise
    ends_ranks: bool = False


CASES = {
    "plain": Kind(46, fails=False),
    "threads": Kind(12, fails=False),
    "failed batch": Kind(6, fails=False),
    "centuries": Kind(2, timeout=CENTURIES.total_seconds(), fails=False),
    "alias": Kind(4, timeout=30.0, fails=False),
    "disagreement": Kind(6, timeout=2.0, limit=10.0),
    "abort": Kind(11, timeout=20.0, limit=6.0),
    "stop": Kind(6, timeout=0.7, limit=8.0),
    "impatient": Kind(4, timeout=1.0, limit=8.0),
    "destroy": Kind(4, timeout=2.0, limit=15.0),
    "kill": Kind(2, timeout=20.0, limit=6.0, ends_ranks=True),
    "fork": Kind(1, fails=False),
}


def kind_of(seed: int) -> str:
    names, shares = list(CASES), [kind.share for kind in CASES.values()]
    return random.Random(seed_of("kind", seed)).choices(names, shares)[0]


Plan = list[tuple[str, Step]]  # names of groups, and what they do


def draw_plans(seed: int, kind: str, groups: Mapping[str, Sequence[int]]) -> list[Plan]:
    """The lanes of a case: one per thread."""
    rng = random.Random(seed)
    if kind == "threads":
        return thread_plans(rng, seed)
    if CASES[kind].timeout:
        count = rng.randint(2, 5)
        return [[("own", fault_step(rng, seed, i, kind)) for i in range(count)]]
    names = [name for name, ranks in groups.items() if len(ranks) > 1 and name != "own"]
    if kind == "failed batch":
        names = ["world"]
    plan = []
    for index in range(rng.randint(2, 9)):
        name = "world" if rng.random() < 0.5 else rng.choice(names)
        plan.append((name, any_step(rng, seed, index, list(KINDS))))
    return [plan]


def any_step(rng: random.Random, seed: int, index: int, kinds: Sequence[str]) -> Step:
    style = rng.choice(("sync", "sync", "wait", "wait", "future", "impatient"))
    return Step(rng.choice(kinds), seed_of(seed, index), style)


def fault_step(rng: random.Random, seed: int, index: int, kind: str) -> Step:
    """A long one, most of the time, of tensors that others use where they lie."""
    if kind == "disagreement":
        return any_step(rng, seed, index, list(KINDS))
    names = [f.__name__ for f in (*REDUCTIONS, *REDUCTIONS, *MOVEMENTS, *AT_ONCE[:3])]
    names += ["message", "batch", "barrier"]
    sizes = (1 << 16, 1 << 20, 1 << 21, 1 << 22, 1 << 22, 1 << 23, 1 << 24)
    style = rng.choice(("sync", "wait", "wait", "future"))
    if kind == "impatient":
        names, style = ["message", "message", "batch", "from_anybody"], "impatient"
    heap = rng.choice((1.0, 1.0, 0.5, 0.0))
    return Step(rng.choice(names), seed_of(seed, index), style, rng.choice(sizes), heap)


def thread_plans(rng: random.Random, seed: int) -> list[Plan]:
    """Messages in one thread beside collectives of another on the same group, and a group alone."""
    messages = [
        ("lane0", any_step(rng, seed, i, ("batch", "batch", "message")))
        for i in range(rng.randint(3, 12))
    ]
    collectives = [f.__name__ for f in (*REDUCTIONS, *MOVEMENTS, *AT_ONCE)]
    beside = [
        ("lane0", any_step(rng, seed, 100 + i, ("all_reduce", "barrier", *collectives)))
        for i in range(rng.randint(5, 20))
    ]
    alone = [("lane1", any_step(rng, seed, 200 + i, list(KINDS))) for i in range(rng.randint(2, 8))]
    return rng.choice(([messages, beside], [messages, beside, alone], [beside, alone]))
