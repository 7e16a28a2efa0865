"""Random pipelines over workers equal their micro-batches one after the other, bit for bit.

WEFT_TEST_SEED=17                        runs that case alone
WEFT_TEST_CASES=5000                     runs so many cases, from seed 0 on
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn
from worker_programs import Program, Weighs, draw

FIRST = int(os.environ.get("WEFT_TEST_SEED", "0"))
CASES = int(os.environ.get("WEFT_TEST_CASES", "1" if "WEFT_TEST_SEED" in os.environ else "200"))
BLOCK = 20


# What the driver, worker 0, runs.


def one_after_the_other(
    model: nn.Sequential, program: Program, inputs: Tensor, targets: Tensor
) -> Tensor:
    loss, total = Weighs(program.reduction), torch.zeros(())
    for part, wanted in zip(
        inputs.chunk(program.chunks), targets.chunk(program.chunks), strict=True
    ):
        weight = len(part) / len(inputs) if program.reduction == "mean" else 1.0
        value = part
        for layer in model:
            value = layer(*value) if isinstance(value, tuple) else layer(value)
        one = loss(value, wanted) * weight
        if one.requires_grad:
            one.backward()
        total = total + one.detach()
    return total


def compare(program: Program) -> None:
    import weft

    placed = [
        layer if place == "0" else weft.WithDevice(layer, f"worker{place}/cpu")
        for layer, place in zip(program.build(), program.places, strict=True)
    ]
    pipe = weft.Pipe(
        nn.Sequential(*placed), program.chunks, program.checkpoint, schedule=program.schedule
    )
    plain = nn.Sequential(*program.build())
    trained = [one for one in plain.parameters() if one.requires_grad]
    optimizer = pipe.optimizer(torch.optim.SGD, lr=1e-3, momentum=0.9)
    own = torch.optim.SGD(trained, lr=1e-3, momentum=0.9) if trained else None
    for number in range(len(program.rows)):
        inputs, targets = program.batch(number)
        loss = pipe.step(inputs, targets, loss=Weighs(program.reduction))
        expected = one_after_the_other(plain, program, inputs, targets)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)  # the sum's order
        optimizer.step()
        optimizer.zero_grad()
        if own is not None:
            own.step()
            own.zero_grad()
    found = pipe.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.equal(found[name], value), (
            f"{name} differs by {(found[name] - value).abs().max()}"
        )
    inputs, _ = program.batch(0)
    pipe.eval()
    plain.eval()
    output, value = pipe(inputs).to_here(), inputs
    parts = []
    with torch.no_grad():
        for value in inputs.chunk(program.chunks):
            for layer in plain:
                value = layer(*value) if isinstance(value, tuple) else layer(value)
            parts.append(value)
    assert torch.equal(output, torch.cat(parts)), "the output differs"
    pipe.close()


def findings(seeds: list[int]) -> list[str]:
    found = []
    for seed in seeds:
        program = draw(seed)
        try:
            compare(program)
        except Exception as error:
            found.append(f"{program}\n{type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("first", range(FIRST, FIRST + CASES, BLOCK))
def test_random_pipelines(group, first):
    seeds = list(range(first, min(first + BLOCK, FIRST + CASES)))
    assert not group[0].call(findings, seeds)
