"""Who runs what when: the order of each worker's tasks. Each worker computes it for itself.

A worker runs its tasks one after the other and waits for the input of each. Workers cannot wait for
each other in a circle, because the orders of all workers are parts of one order of all tasks, in which
each task comes after those that it needs.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb")

#: Kinds of tasks. With WEIGHTS, a BACKWARD computes only what the stage before waits for.
FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "weights"


class Task(NamedTuple):
    """One stage's work on one micro-batch."""

    kind: str
    stage: int
    micro_batch: int


#: The tasks of each worker, in order.
Plan = dict[str, list[Task]]


class PlanSpec(NamedTuple):
    """What the plan of a mini-batch is made from, beside its stages' workers."""

    schedule: str
    chunks: int  # micro-batches
    only: str | None = None  # FORWARD or BACKWARD: tasks of this kind


@functools.lru_cache(maxsize=64)
def plan_of(spec: PlanSpec, workers: tuple[tuple[str, ...], ...]) -> Plan:
    """The plan; do not change it. It is kept, because to make a long one takes longer than its tasks."""
    if spec.only is not None:
        return plan_of_kind(spec.only, workers, spec.chunks)
    return plan(spec.schedule, workers, spec.chunks)


def needs(task: Task, stages: int) -> list[Task]:
    """The tasks that must be done before."""
    if task.kind == WEIGHTS:
        return [task._replace(kind=BACKWARD)]
    if task.kind == FORWARD:
        return [task._replace(stage=task.stage - 1)] if task.stage else []
    before = [task._replace(kind=FORWARD)]
    return before + ([task._replace(stage=task.stage + 1)] if task.stage < stages - 1 else [])


def splits_backward(schedule: str, stage: int) -> bool:
    """Whether the stage computes its parameters' gradients later; not the first: nobody waits for it."""
    return schedule == "zb" and stage > 0


def plan_of_kind(kind: str, workers: Sequence[Sequence[str]], chunks: int) -> Plan:
    """All forwards, or all backwards, in the order of ``"gpipe"``."""
    order = [task for task in _gpipe(len(workers), chunks) if task.kind == kind]
    return _dealt_out(order, workers)


def plan(schedule: str, workers: Sequence[Sequence[str]], chunks: int) -> Plan:
    """The tasks of each worker, in order.

    Args:
        schedule: ``"gpipe"`` (Huang et al. 2019: all forwards, then all backwards), ``"1f1b"``
            (Narayanan et al. 2019: a stage holds at most as many micro-batches as stages are left),
            ``"interleaved"`` (Narayanan et al. 2021: several stages per worker) or ``"zb"`` (Qi et al.
            2024, ZB-H1: as ``"1f1b"``, and gradients of parameters fill the time in which it waits).
        workers: those of each stage; replicas take the micro-batches in turn, as in PipeDream's
            1F1B-RR (Narayanan et al. 2019).
        chunks: the number of micro-batches.

    Raises:
        ValueError: there is no such schedule, or it cannot run on these workers.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule is not one of {', '.join(SCHEDULES)}: {schedule!r}")
    if schedule == "gpipe":
        return _dealt_out(_gpipe(len(workers), chunks), workers)
    if schedule in ("1f1b", "zb"):
        return _one_forward_one_backward(schedule, workers, chunks)
    return _interleaved(workers, chunks)


def worker_of(replicas: Sequence[str], micro_batch: int) -> str:
    """The workers of a stage take the micro-batches in turn."""
    return replicas[micro_batch % len(replicas)]


def workers_of(workers: Sequence[Sequence[str]]) -> list[str]:
    """The workers of all stages, each once."""
    return list(dict.fromkeys(name for replicas in workers for name in replicas))


def _dealt_out(order: list[Task], workers: Sequence[Sequence[str]]) -> Plan:
    made: Plan = {name: [] for name in workers_of(workers)}
    for task in order:
        made[worker_of(workers[task.stage], task.micro_batch)].append(task)
    return made


def _gpipe(stages: int, chunks: int) -> list[Task]:
    """In each clock cycle, every stage works on the micro-batch that the one before it just left."""
    every = [(stage, part) for part in range(chunks) for stage in range(stages)]
    forward = sorted(every, key=lambda at: (at[0] + at[1], at[0]))
    reverse = sorted(every, key=lambda at: (stages - at[0] + at[1], at[0]))
    order = [Task(FORWARD, stage, part) for stage, part in forward]
    return order + [Task(BACKWARD, stage, part) for stage, part in reverse]


def _one_forward_one_backward(schedule: str, workers: Sequence[Sequence[str]], chunks: int) -> Plan:
    """Each worker prefers a backward, then a forward if the stage holds few enough.

    Gradients of parameters wait until there is neither. All replicas of a stage together hold as many
    micro-batches as there are replicas in this and the later stages. A task is taken to last as many
    cycles as its stage has replicas, because a slow stage has replicas to keep up with the others.
    """
    stages = len(workers)
    splits = [splits_backward(schedule, stage) for stage in range(stages)]
    widths = [len(replicas) for replicas in workers]
    # For each replica; both are limited:
    ahead: Counter[tuple[int, str]] = Counter()  # forwards without a backward
    held: Counter[tuple[int, str]] = Counter()  # micro-batches of which something is kept
    most_ahead = [-(-sum(widths[stage:]) // widths[stage]) for stage in range(stages)]
    most_held = [-(-sum(widths) // width) for width in widths]
    order: Plan = {name: [] for name in workers_of(workers)}
    now, ends, free = 0, dict[Task, int](), dict.fromkeys(order, 0)

    def ready(task: Task) -> bool:
        stage, replica = task.stage, (task.stage, worker_of(workers[task.stage], task.micro_batch))
        full = ahead[replica] >= most_ahead[stage] or held[replica] >= most_held[stage]
        if task.kind == FORWARD and full:
            return False
        return all(ends.get(need, now + 1) <= now for need in needs(task, stages))

    waiting: Plan = {name: [] for name in order}
    for kind in (BACKWARD, FORWARD, WEIGHTS):
        for part in range(chunks):
            for stage in reversed(range(stages)):
                task = Task(kind, stage, part)
                if kind != WEIGHTS or splits[stage]:
                    waiting[worker_of(workers[stage], part)].append(task)
    while any(waiting.values()):
        for name, tasks in waiting.items():
            task = (
                next((task for task in tasks if ready(task)), None) if free[name] <= now else None
            )
            if task is None:
                continue
            tasks.remove(task)
            order[name].append(task)
            last = WEIGHTS if splits[task.stage] else BACKWARD
            ahead[task.stage, name] += (task.kind == FORWARD) - (task.kind == BACKWARD)
            held[task.stage, name] += (task.kind == FORWARD) - (task.kind == last)
            ends[task] = free[name] = now + widths[task.stage]
        now += 1
    return order


def _interleaved(workers: Sequence[Sequence[str]], chunks: int) -> Plan:
    """Megatron-LM's order: each worker runs a group of micro-batches, as many as workers, per stage."""
    names = workers_of(workers)
    width = len(names)
    rounds = len(workers) // width
    if [tuple(one) for one in workers] != [(name,) for name in names] * rounds or rounds < 2:
        raise ValueError(
            "the schedule 'interleaved' takes several stages per worker, in turn, as in a, b, a, b; "
            f"these are on {', '.join(map('+'.join, workers))}"
        )
    if chunks % width:
        raise ValueError(
            f"the schedule 'interleaved' takes a multiple of {width} micro-batches, one for each "
            f"worker, not {chunks}"
        )
    total = chunks * rounds

    def task(kind: str, number: int, rank: int) -> Task:
        turn = number // width % rounds
        if kind == BACKWARD:
            turn = rounds - 1 - turn
        part = number // (width * rounds) * width + number % width
        return Task(kind, turn * width + rank, part)

    order: Plan = {}
    for rank, name in enumerate(names):
        ahead = min(total, (width - rank - 1) * 2 + (rounds - 1) * width)
        tasks = [task(FORWARD, number, rank) for number in range(ahead)]
        for number in range(total - ahead):
            tasks += [task(FORWARD, ahead + number, rank), task(BACKWARD, number, rank)]
        tasks += [task(BACKWARD, number, rank) for number in range(total - ahead, total)]
        order[name] = tasks
    return order
