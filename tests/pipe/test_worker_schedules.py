"""The orders of tasks that a pipeline over workers follows."""

from __future__ import annotations

import itertools

import pytest

from weft.pipe._driver.worker_timeline import WorkerMiniBatch
from weft.pipe._timeline.events import Event
from weft.pipe._workers.schedule import (
    BACKWARD,
    FORWARD,
    WEIGHTS,
    Task,
    needs,
    plan,
    plan_of_kind,
    splits_backward,
)


def run(order: dict[str, list[Task]], stages: int) -> tuple[int, dict[int, int]]:
    """Runs each worker's tasks in order, one per clock cycle where its input is there.

    Returns the cycles, and how many micro-batches each stage held at most; fails on a deadlock.
    """
    left = {name: list(tasks) for name, tasks in order.items()}
    done: set[Task] = set()
    held = dict.fromkeys(range(stages), 0)
    most = dict(held)
    for cycle in itertools.count():
        if not any(left.values()):
            return cycle, most
        ready = [
            tasks
            for tasks in left.values()
            if tasks and all(need in done for need in needs(tasks[0], stages))
        ]
        assert ready, f"nobody can go on: { ({name: tasks[:1] for name, tasks in left.items()}) }"
        for task in [tasks.pop(0) for tasks in ready]:
            done.add(task)
            held[task.stage] += {FORWARD: 1, BACKWARD: -1}.get(task.kind, 0)
            most[task.stage] = max(most[task.stage], held[task.stage])
    raise AssertionError


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("workers", ["a", "ab", "abc", "abcd", "aba", "abab", "aab", "abcabc"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb"])
def test_every_task_runs_once_and_nobody_waits_for_ever(schedule, workers, chunks):
    order = plan(schedule, workers, chunks)
    tasks = sorted(itertools.chain(*order.values()))
    assert tasks == sorted(
        Task(kind, stage, part)
        for kind in (FORWARD, BACKWARD, WEIGHTS)
        for stage in range(len(workers))
        for part in range(chunks)
        if kind != WEIGHTS or splits_backward(schedule, stage)
    )
    _, most = run(order, len(workers))
    if schedule in ("1f1b", "zb"):
        for stage, count in most.items():
            assert count <= min(chunks, len(workers) - stage)


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize(
    "workers",
    [["a", "bc"], ["ab", "c"], ["ab", "cd"], ["a", "bcd", "ae"], ["abc", "abc"], ["ab", "ba", "a"]],
)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb"])
def test_replicas_take_the_micro_batches_in_turn(schedule, workers, chunks):
    order = plan(schedule, workers, chunks)
    for name, tasks in order.items():
        for task in tasks:
            replicas = workers[task.stage]
            assert replicas[task.micro_batch % len(replicas)] == name
    kinds = [2 + splits_backward(schedule, stage) for stage in range(len(workers))]
    assert len(set(itertools.chain(*order.values()))) == chunks * sum(kinds)
    _, most = run(order, len(workers))
    if schedule == "1f1b":
        for stage, count in most.items():
            left = sum(map(len, workers[stage:]))
            assert count <= min(chunks, left + len(workers[stage]) - 1)


def test_two_replicas_of_a_slow_stage_halve_its_time():
    """A stage that takes two cycles, which two workers share, keeps up with one that takes one."""
    order = plan("1f1b", ["a", "bc"], 16)
    free = dict.fromkeys(order, 0)
    ends: dict[Task, int] = {}
    left = {name: list(tasks) for name, tasks in order.items()}
    while any(left.values()):
        for name, tasks in left.items():
            while tasks and all(need in ends for need in needs(tasks[0], 2)):
                task = tasks.pop(0)
                begin = max([free[name], *(ends[need] for need in needs(task, 2))])
                free[name] = ends[task] = begin + (1 if task.stage == 0 else 2)
    assert max(ends.values()) <= 16 * 2 + 10  # the work of a stage, and filling and draining


@pytest.mark.parametrize("chunks", [2, 4, 8, 16])
@pytest.mark.parametrize("workers", ["ab", "abcd"])
def test_zero_bubble_keeps_no_more_than_the_first_stage_of_1f1b(workers, chunks):
    for tasks in plan("zb", workers, chunks).values():
        kept = 0
        for task in tasks:
            last = WEIGHTS if splits_backward("zb", task.stage) else BACKWARD
            kept += (task.kind == FORWARD) - (task.kind == last)
            assert kept <= len(workers)


@pytest.mark.parametrize("chunks", [2, 4, 8])
@pytest.mark.parametrize("rounds", [2, 3])
def test_interleaved_has_the_smaller_bubble(chunks, rounds):
    workers = "ab" * rounds
    cycles, _ = run(plan("interleaved", workers, chunks), len(workers))
    others, _ = run(plan("gpipe", workers, chunks), len(workers))
    assert cycles <= others
    # The ideal, and a warm-up and a cool-down of one stage each (Narayanan et al. 2021).
    assert cycles == 2 * chunks * rounds + 2


@pytest.mark.parametrize("kind", [FORWARD, BACKWARD])
def test_forwards_or_backwards_alone(kind):
    assert plan_of_kind(kind, "ab", 3) == {
        "a": [Task(kind, 0, part) for part in range(3)],
        "b": [Task(kind, 1, part) for part in range(3)],
    }


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(
        ValueError, match="schedule is not one of gpipe, 1f1b, interleaved, zb: '2f'"
    ):
        plan("2f", "ab", 4)
    with pytest.raises(ValueError, match="in turn, as in a, b, a, b; these are on a, b"):
        plan("interleaved", "ab", 4)
    with pytest.raises(
        ValueError, match="a multiple of 2 micro-batches, one for each worker, not 3"
    ):
        plan("interleaved", "abab", 3)


def length(schedule: str, task: Task) -> int:
    """Forward, gradients of inputs and gradients of parameters take equally long."""
    return 2 if task.kind == BACKWARD and not splits_backward(schedule, task.stage) else 1


def played(schedule: str, workers: str, chunks: int) -> WorkerMiniBatch:
    """The mini-batch as workers run it that wait before each task."""
    order = plan(schedule, workers, chunks)
    events = [
        Event(task.stage, task.micro_batch, task.kind, 10 * at, 10 * at + length(schedule, task), 0)
        for at, task in enumerate(itertools.chain(*order.values()))
    ]
    return WorkerMiniBatch(events, schedule, order, list(workers))


@pytest.mark.parametrize("chunks", [4, 8])
@pytest.mark.parametrize(
    ("schedule", "workers"), [("gpipe", "abcd"), ("1f1b", "abcd"), ("1f1b", "ab")]
)
def test_the_bubble_on_paper_is_the_one_of_the_paper(schedule, workers, chunks):
    batch, stages = played(schedule, workers, chunks), len(workers)
    assert batch.ideal_bubble == pytest.approx((stages - 1) / (chunks + stages - 1))
    assert batch.ideal().figures().bubble == pytest.approx(batch.ideal_bubble)
    assert batch.figures().bubble > batch.ideal_bubble
    assert {event[:3] for event in batch.ideal().events} == {event[:3] for event in batch.events}


def test_interleaved_on_paper_waits_less():
    """(W - 1) / (V * M + W - 1) for W workers with V stages each (Narayanan et al. 2021)."""
    batch = played("interleaved", "abab", 8)
    assert batch.lanes == 2
    assert [batch.turn(stage) for stage in range(4)] == [0, 0, 1, 1]
    assert batch.ideal_bubble == pytest.approx(1 / (2 * 8 + 1))


@pytest.mark.parametrize("chunks", [4, 8, 16])
@pytest.mark.parametrize("workers", ["ab", "abcd"])
def test_zero_bubble_on_paper_waits_a_third(workers, chunks):
    """(S - 1) of (3 M + S - 1): ZB-H1 with tasks of one length (Qi et al. 2024)."""
    batch, stages = played("zb", workers, chunks), len(workers)
    assert batch.ideal_bubble == pytest.approx((stages - 1) / (3 * chunks + stages - 1))
