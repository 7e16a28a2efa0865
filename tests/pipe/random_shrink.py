"""Takes a random program apart that fails: what is left fails in the same way."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from random_check import Finding
from random_draw import legal
from random_models import PARTS, Op
from random_programs import Program, Step


def smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less."""
    change = lambda **values: legal(dataclasses.replace(program, **values))  # noqa: E731
    for k in range(len(program.steps) - 1, -1, -1):
        if len(program.steps) > 1:
            yield change(steps=program.steps[:k] + program.steps[k + 1 :])
    for k in range(len(program.stages)):
        if len(program.stages) > 1:
            yield change(stages=paired(program.stages[:k] + program.stages[k + 1 :]), cut=None)
    for stages in fewer_ops(program.stages):
        yield change(stages=paired(stages))
    for name, plain in (
        ("cut", None), ("deferred", False), ("second", None), ("double", True), ("mode", "never"),
        ("threading", "inline"), ("chunks", 1), ("chunks", 2),
    ):  # fmt: skip
        if getattr(program, name) != plain and not (name == "chunks" and program.chunks < plain):
            yield change(**{name: plain})
    for k in range(len(program.hooks)):
        yield change(hooks=program.hooks[:k] + program.hooks[k + 1 :])
    for k, step in enumerate(program.steps):
        for other in fewer_in_step(step):
            yield change(steps=(*program.steps[:k], other, *program.steps[k + 1 :]))


def fewer_ops(stages: tuple[tuple[Op, ...], ...]) -> Iterator[tuple[tuple[Op, ...], ...]]:
    for j, ops in enumerate(stages):
        for other in fewer_in(ops):
            if other:
                yield (*stages[:j], other, *stages[j + 1 :])


def fewer_in(ops: tuple[Op, ...]) -> Iterator[tuple[Op, ...]]:
    for k, op in enumerate(ops):
        rest = ops[:k], ops[k + 1 :]
        yield rest[0] + rest[1]
        if op.inner:
            yield rest[0] + op.inner + rest[1]
        for inner in fewer_in(op.inner):
            yield (*rest[0], dataclasses.replace(op, inner=inner), *rest[1])
        if op.since:
            yield (*rest[0], dataclasses.replace(op, since=0), *rest[1])
        if op.at:
            yield (*rest[0], dataclasses.replace(op, at=0), *rest[1])
        if op.arg and op.name in PARTS:
            yield (*rest[0], dataclasses.replace(op, arg=None), *rest[1])


def paired(stages: tuple[tuple[Op, ...], ...]) -> tuple[tuple[Op, ...], ...]:
    """Without skips that have lost an end."""
    place = {(op.name, op.arg): j for j, ops in enumerate(stages) for op in ops}
    good = {
        arg
        for name, arg in place
        if name == "stash" and place.get(("pop", arg), -1) > place[name, arg]
    }
    return tuple(
        tuple(op for op in ops if op.name not in ("stash", "pop") or op.arg in good)
        for ops in stages
    )


def fewer_in_step(step: Step) -> Iterator[Step]:
    for k in range(len(step.around)):
        yield dataclasses.replace(step, around=step.around[:k] + step.around[k + 1 :])
    for name, plain in (
        ("way", "backward"), ("input", "data"), ("input", "leaf"), ("unused", 0), ("frozen", None),
        ("update", False), ("training", True), ("rows", 2), ("rows", 4),
    ):  # fmt: skip
        if getattr(step, name) not in (plain, "data" if name == "input" else plain):
            yield dataclasses.replace(step, **{name: plain})


def shrink(
    program: Program, kind: str, find: Callable[[Program], Finding | None], seconds: float = 20
) -> Program:
    """The smallest program found in that time that is still wrong in the same way."""
    end = time.monotonic() + seconds

    def is_wrong(other: Program) -> bool:
        # What depends on how threads run is tried some times.
        findings = (find(other) for _ in range(3 if other.threading == "threads" else 1))
        return any(finding is not None and finding.kind == kind for finding in findings)

    while True:
        for other in smaller(program):
            if time.monotonic() > end:
                return program
            if is_wrong(other):
                program = other
                break
        else:
            return program
