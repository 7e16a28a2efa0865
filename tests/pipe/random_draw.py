"""Draws random programs."""

from __future__ import annotations

import dataclasses
import random

from pipe_models import MODES
from random_models import OPS, Op, walk
from random_programs import ALL_AROUND, AROUND, HOOKS, Program, Step
from random_ways import NOT_TRANSFORMED, SECOND_ORDER, TRANSFORMS, WAYS

IN_PLACE = ("relu_", "add_", "half_", "dirty_")
DRAWING = ("dropout", "annealed", "noise", "forked", "inner_pipe")
PLAIN = ("linear", "tanh", "square", "layer_norm")
WITH_INNER = (
    "checkpointed",
    "checkpointed_reentrant",
    "autocast",
    "no_autocast",
    "no_grad",
    "saved_hooks",
    "energy_gradient",
    "func_grad",
    "func_vmap",
    "func_jvp",
    "dual_inside",
)
#: What gives two values in one memory. A Pipe's outputs each have their own.
ALIASING = ("view", "transposed_view", "detached", "stash")
#: In the first stage's input or where several rows are needed, these make no sense.
TOP_ONLY = (
    "same_twice",
    "view",
    "transposed_view",
    "detached",
    "detached_copy",
    "not_differentiable",
    "turned",
    "merged",
    "dropped",
    "word",
    "nothing",
    "integers",
    "in_a_dictionary",
    "tensor_hook",
    "embedding",
    "batch_norm",
    "lazy",
    "unregistered",
)
#: Operations that are to meet.
THEMES = (
    ("checkpointed", *DRAWING),
    ("checkpointed", "checkpointed_reentrant", "saved_hooks", "autocast", "dropout", "count"),
    (*IN_PLACE, "same_twice", "view", "transposed_view", "detached", "merged"),
    ("detached", "detached_copy", "not_differentiable", "merged", "energy_gradient", "no_grad"),
    ("embedding", "linear", "lazy", "parametrized", "functional_linear"),
    ("autocast", "no_autocast", "linear", "layer_norm", "func_grad", "checkpointed"),
    ("func_grad", "func_vmap", "func_jvp", "dual_inside", "tensor_hook", "parametrized"),
    ("batch_norm", "count", "dropout", "checkpointed"),
    ("inner_pipe", "dropout", "checkpointed", "autocast"),
    ("word", "nothing", "integers", "in_a_dictionary", "turned", "dropped", "not_differentiable"),
)
#: What may stand inside which other operation; anything plain, where none is named.
PURE_INSIDE = ("energy_gradient", "func_grad", "func_vmap", "func_jvp", "dual_inside")


def draw_ops(chosen: random.Random, menu: tuple[str, ...], steps: int) -> tuple[Op, ...]:
    """A stage of operations of the menu."""
    ops = []
    for _ in range(chosen.choice((1, 1, 2, 2, 3, 4))):
        name = chosen.choice(menu if chosen.random() < 0.7 else PLAIN)
        ops.append(draw_op(chosen, name, menu, steps))
    return tuple(ops)


def draw_op(chosen: random.Random, name: str, menu: tuple[str, ...], steps: int) -> Op:
    since = chosen.randrange(steps) if chosen.random() < 0.2 and name != "lazy" else 0
    arg = chosen.choice((None, "w0", "w1")) if name in ("linear", "embedding") else None
    inner: tuple[Op, ...] = ()
    if name in WITH_INNER:
        within = tuple(n for n in menu if n not in TOP_ONLY and n not in WITH_INNER)
        if name in PURE_INSIDE:
            within = tuple(n for n in within if n in (*PLAIN, "functional_linear"))
        inner = tuple(
            draw_op(chosen, chosen.choice((*within, *PLAIN)), menu, steps)
            for _ in range(chosen.choice((1, 2, 2)))
        )
    return Op(name, chosen.randrange(3), arg, inner, since)


def draw_stages(
    chosen: random.Random, menu: tuple[str, ...], steps: int, skips: int
) -> tuple[tuple[Op, ...], ...]:
    count = chosen.choice((1, 2, 2, 3, 3, 4))
    stages = [list(draw_ops(chosen, menu, steps)) for _ in range(count)]
    for k in range(skips if count > 1 else 0):
        begin, end = sorted(chosen.sample(range(count), 2))
        since = chosen.randrange(steps) if chosen.random() < 0.2 else 0
        where = chosen.randrange(len(stages[begin]) + 1)
        stages[begin].insert(where, Op("stash", chosen.randrange(3), f"s{k}", since=since))
        where = chosen.randrange(len(stages[end]) + 1)
        stages[end].insert(where, Op("pop", 0, f"s{k}"))
    return tuple(map(tuple, stages))


# What a program is made of.

SECONDS = ("leaf", "data", "same", "no_chunk", "no_chunk_leaf")


def all_ingredients() -> list[str]:
    return [
        *(f"op {name}" for name in OPS),
        *(f"way {name}" for name in WAYS),
        *(f"around {name}" for name in (*AROUND, *(f"{name}_all" for name in ALL_AROUND))),
        *(f"hook {name}" for name in HOOKS),
        *(f"second {name}" for name in SECONDS),
        "two pipes",
        "deferred batch norm",
    ]


def ingredients(program: Program, number: int) -> set[str]:
    """Those that take part in one of its mini-batches."""
    step = program.steps[number]
    found = {f"op {op.name}" for ops in program.stages for _, op in walk(ops) if op.since <= number}
    found |= {f"way {step.way}", *(f"around {name}" for name in step.around)}
    found |= {f"hook {name}" for name, _ in program.hooks}
    if program.second:
        found.add(f"second {program.second}")
    if program.cut:
        found.add("two pipes")
    if program.deferred:
        found.add("deferred batch norm")
    return found


# Drawing.


def draw(seed: int) -> Program:
    """The program of a seed: a few kinds of ingredients at a time, so that they meet."""
    chosen = random.Random(seed)
    ops = [name for name in OPS if name not in ("stash", "pop")]
    menu = tuple(chosen.sample(ops, chosen.choice((1, 3, 6, 9))))
    if chosen.random() < 0.6:
        menu = (*chosen.choice(THEMES), *menu[:2])
    steps = chosen.choice((1, 2, 3, 3, 4))
    stages = draw_stages(chosen, menu, steps, skips=chosen.choice((0, 0, 1, 2)))
    names = {op.name for ops in stages for _, op in walk(ops)}
    ways = chosen.sample(list(WAYS), 3)
    arounds = chosen.sample([*AROUND, *(f"{name}_all" for name in ALL_AROUND)], 2)
    autocast = "autocast" in names or any(name.startswith("autocast") for name in arounds)
    program = Program(
        stages,
        tuple(draw_step(chosen, ways, arounds) for _ in range(steps)),
        chunks=chosen.choice((1, 2, 2, 3, 4)),
        mode=chosen.choice(MODES),
        threading=chosen.choice(("threads", "threads", "threads", "inline", "auto")),
        cut=1 if len(stages) > 1 and chosen.random() < 0.15 else None,
        deferred=chosen.random() < 0.5 and "batch_norm" in names,
        second=chosen.choice(SECONDS) if chosen.random() < 0.25 else None,
        hooks=tuple(
            (name, chosen.randrange(6))
            for name in chosen.sample(list(HOOKS), chosen.choice((0, 0, 1, 2)))
        ),
        double=not autocast,
        seed=seed,
    )
    return legal(program)


def draw_step(chosen: random.Random, ways: list[str], arounds: list[str]) -> Step:
    return Step(
        rows=chosen.choice((1, 3, 4, 5, 6)),
        training=chosen.random() < 0.8,
        way=chosen.choice(ways) if chosen.random() < 0.7 else "backward",
        around=tuple(name for name in arounds if chosen.random() < 0.35),
        input=chosen.choice(("leaf", "inner", "data")),
        unused=chosen.choice((0, 0, 0, 1, 2, 5)),
        frozen=chosen.randrange(8) if chosen.random() < 0.15 else None,
        update=chosen.random() < 0.5,
    )


def legal(program: Program) -> Program:
    """Without what neither side is asked for."""
    names = {op.name for ops in program.stages for _, op in walk(ops)}
    cut = program.cut
    if cut is not None and ({"stash", "in_a_dictionary"} & names or cut >= len(program.stages)):
        cut = None
    stages = tuple(ops or (Op("linear"),) for ops in program.stages)
    steps = []
    for step in program.steps:
        # Random numbers, statistics and lazy weights of two threads have no order.
        alone = {*DRAWING, "unregistered", "count", "batch_norm", "lazy"} & names
        shared = {"checkpoint", "checkpoint_reentrant", "cached", "cached_all"} & set(step.around)
        if "unregistered" in names and step.input == "data":
            # Where nothing else needs a gradient, the output says that it has none.
            step = dataclasses.replace(step, input="leaf")
        if step.way == "two_threads" and (alone or shared):
            step = dataclasses.replace(step, way="other_thread")
        if step.way in TRANSFORMS and (
            NOT_TRANSFORMED & names or any(name.startswith("saved_hooks") for name in step.around)
        ):
            step = dataclasses.replace(step, way="backward")
        if step.way == "output_changed_before_backward" and set(ALIASING) & names:
            step = dataclasses.replace(step, way="backward")
        steps.append(step)
        if set(IN_PLACE) & names:  # what is written is not there for the second time
            kept = tuple(name for name in step.around if name != "checkpoint_reentrant")
            steps[-1] = dataclasses.replace(step, around=kept)
    hooks = program.hooks
    if set(ALIASING) & names:  # a hook of one output is a hook of the other, without a Pipe
        hooks = tuple(hook for hook in hooks if hook[0] != "output")
    if "lazy" in names:  # its weights are made by an ordinary forward
        steps[0] = dataclasses.replace(steps[0], way="backward", around=())
    # Other batch norms learn from a recomputation as well.
    again = program.mode != "never" or any(step.way in SECOND_ORDER for step in steps)
    deferred = "batch_norm" in names and (program.deferred or again)
    return dataclasses.replace(
        program, stages=stages, cut=cut, steps=tuple(steps), deferred=deferred, hooks=hooks
    )
