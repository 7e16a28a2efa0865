"""Random models through a Pipe and without one: the same results, or an error that says why not.

Each case is a random program (random_programs.py): stages of random operations, among them shared
weights, aliases, in-place operations, random numbers, nested checkpoints, hooks and transforms, some
mini-batches in a row whose ways change, every checkpoint mode, mostly on threads. Outputs,
gradients, buffers and the random numbers' state are compared with those of the same stages run
micro-batch by micro-batch in the schedule's order.

REFUSALS says which ingredients a Pipe may refuse, and with which error; all others must work. Any
other error is a failure, and so is a wrong number.

    WEFT_TEST_SEED=17                       runs that case alone
    WEFT_TEST_CASES=50000                   runs so many cases, from seed 0 on
    WEFT_TEST_SEED=1000 WEFT_TEST_CASES=50  runs seeds 1000 to 1049

A failing case is reduced to a smaller program that fails in the same way.
`python tests/pipe/test_random_models.py 'Program(…)'` runs the one that was printed.
"""

from __future__ import annotations

import dataclasses
import os
import re

import pytest
import random_draw
from random_check import Finding, Tally, check
from random_draw import all_ingredients, draw, ingredients
from random_programs import Program
from random_shrink import shrink

pytestmark = pytest.mark.usefixtures("alone")

DEFAULT_CASES = 400
BLOCK = 50

FIRST = int(os.environ.get("WEFT_TEST_SEED", "0"))
CASES = int(
    os.environ.get("WEFT_TEST_CASES", "1" if "WEFT_TEST_SEED" in os.environ else DEFAULT_CASES)
)


@dataclasses.dataclass(frozen=True)
class Refusal:
    """An error that a Pipe may raise for an ingredient, or for several that meet."""

    message: str
    why: str
    #: Run again, the mini-batch works.
    once: bool = False


IN_PLACE = tuple(f"op {name}" for name in random_draw.IN_PLACE)
ALIASES = (
    "op same_twice",
    "op view",
    "op transposed_view",
    "op detached",
    "op stash",
    "second same",
)

#: The ingredients, separated by commas; all of them must be there. Without any: in all programs.
REFUSALS: dict[str, Refusal] = {
    **{
        name: Refusal(
            r"changed its input in place, which it had not done before",
            "a copy of what is needed again is kept from the second time on",
            once=True,
        )
        for name in IN_PLACE
    },
    **{
        f"{name}, {alias}": Refusal(
            r"in place, and its memory also belongs to", "a stage would change another one's value"
        )
        for name in IN_PLACE
        for alias in ALIASES
    },
    "op checkpointed_reentrant": Refusal(
        r"use_reentrant=False", "torch's older checkpoint needs a backward() of the whole graph"
    ),
    "op checkpointed_reentrant, around anomaly": Refusal(
        r"no attribute 'metadata'", "torch's anomaly mode fails on the way to tell that error"
    ),
    "op energy_gradient": Refusal(
        r"must be a registered parameter, or an input|nor one of its registered parameters",
        "a leaf that the stage makes cannot be told from one that is kept somewhere",
    ),
    "op unregistered": Refusal(
        r"must be a registered parameter, or an input|nor one of its registered parameters",
        "gradients reach inputs and registered parameters",
    ),
    "way input_changed_before_backward": Refusal(
        r"modified by an inplace operation|its base or another view of its base has been modified",
        "as torch says where an operation has saved the input, or a module's hook a view of it",
    ),
    "way output_changed_before_backward": Refusal(
        r"modified by an inplace operation|a view of a leaf Variable that requires grad",
        "of one micro-batch, a last stage that does nothing gives what it was given",
    ),
    **{
        f"way {way}, {name}": Refusal(
            r"would mutate a captured Tensor", "as torch says of a layer that is given the input"
        )
        for way in random_draw.TRANSFORMS
        for name in IN_PLACE
    },
    **{
        f"way batched_gradients, op {name}": Refusal(
            r"random operations inside of vmap", "a recomputation is part of the backward"
        )
        for name in random_draw.DRAWING
    },
    "way parameter_changed_before_backward": Refusal(
        r"modified by an inplace operation", "as torch says where an operation has saved it"
    ),
    "": Refusal(
        r"gave an output that requires a gradient, which it had not done before",
        "the first mini-batches of a stage say which of its outputs have gradients",
        once=True,
    ),
}


@dataclasses.dataclass(frozen=True)
class Known:
    """A failure that is known: the ingredients that meet, and what is found then."""

    ingredients: str
    finding: str
    why: str


WRITES_ITS_PIECE = (
    r"^raised(?s:.*)(a view of a leaf Variable|modified by an inplace operation"
    r"|is a view and is being modified)",
    "the first stage gets views of one tensor, whose pieces it must not write in place",
)
KNOWN: tuple[Known, ...] = (
    *(
        Known(
            f"hook accumulated, {what}",
            r"^wrong\n.*grad",
            "docs/guide/pipe.md: it is called as well for a parameter without a new gradient, so "
            "perhaps once more for what another backward has added",
        )
        for what in ("way interleaved", "way two_threads", "op checkpointed_reentrant")
    ),
    *(Known(name, *WRITES_ITS_PIECE) for name in IN_PLACE),
    *(
        Known(
            f"op count, op checkpointed, way {way}",
            r"^wrong\nbuffer",
            "torch's checkpoint in a stage runs once more, in a backward that has a graph",
        )
        for way in random_draw.SECOND_ORDER
    ),
    *(
        Known(
            f"op {op}, way maml",
            finding,
            "docs/guide/pipe.md: an output without a graph requires a gradient at first, so maml "
            "goes on",
        )
        for op, finding in (
            ("count", r"^wrong\nbuffer"),
            *((name, r"^wrong\nrandom numbers") for name in random_draw.DRAWING),
        )
    ),
)


def is_known(program: Program, finding: Finding) -> bool:
    present = ingredients(program, finding.step)
    return any(
        present.issuperset(known.ingredients.split(", "))
        and re.search(known.finding, f"{finding.kind}\n{finding.text}")
        for known in KNOWN
    )


def may_raise(program: Program, number: int, text: str) -> str | None:
    """What random_programs.check asks."""
    present = ingredients(program, number)
    answers = {
        "once" if refusal.once else "always"
        for names, refusal in REFUSALS.items()
        if present.issuperset(filter(None, names.split(", "))) and re.search(refusal.message, text)
    }
    return min(answers, default=None)


def run(program: Program, tally: Tally | None = None) -> Finding | None:
    return check(program, may_raise, Tally() if tally is None else tally)


def report(seed: int, program: Program, finding: Finding) -> str:
    small = shrink(program, finding.kind, run)
    finding = next((found for found in (run(small) for _ in range(5)) if found), finding)
    return (
        f"seed {seed}, mini-batch {finding.step}: {finding.kind}\n{finding.text}\n"
        f"in {small!r}\nWEFT_TEST_SEED={seed} runs the whole case again"
    )


def test_the_table_knows_its_ingredients():
    combinations = (*REFUSALS, *(known.ingredients for known in KNOWN))
    named = {name for names in combinations for name in names.split(", ") if name}
    assert named <= set(all_ingredients())


@pytest.mark.timeout(120 + BLOCK)
@pytest.mark.parametrize("block", range(0, CASES, BLOCK), ids=lambda block: f"seed{FIRST + block}")
def test_random_models(block):
    tally = Tally()
    reports = []
    for seed in range(FIRST + block, FIRST + min(block + BLOCK, CASES)):
        program = draw(seed)
        finding = run(program, tally)
        if finding is not None and not is_known(program, finding):
            reports.append(report(seed, program, finding))
            if len(reports) == 3:
                break
    print(f"mini-batches: {tally}")
    assert not reports, "\n\n".join(reports)


if __name__ == "__main__":
    import sys
    import tempfile

    from random_models import Op
    from random_programs import Step
    from torch.distributed import rpc

    import weft

    with tempfile.TemporaryDirectory() as folder:
        weft.init_rpc("alone", rank=0, world_size=1, init_method=f"file://{folder}/store")
        given = eval(sys.argv[1], {"Op": Op, "Program": Program, "Step": Step})
        print(run(given) or "equal, or refused as it may be")
        rpc.shutdown()
