"""Random pipelines over workers equal their micro-batches one after the other, bit for bit.

WEFT_TEST_SEED=17                        runs that case alone
WEFT_TEST_CASES=5000                     runs so many cases, from seed 0 on
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from worker_pipes import graphs_held, held_anywhere
from worker_programs import Program, Weighs, draw

from weft.pipe._workers.values import mapped
from weft.pipe.skip._store import use_store

FIRST = int(os.environ.get("WEFT_TEST_SEED", "0"))
CASES = int(os.environ.get("WEFT_TEST_CASES", "1" if "WEFT_TEST_SEED" in os.environ else "200"))
BLOCK = 10


# What the driver, worker 0, runs.


class Border(dict):
    """Skips that end in another stage: what is made of one there sums its gradients first."""

    def pop(self, key):
        found = super().pop(key)
        return None if found is None else found.view_as(found)


def run_plain(model: nn.Sequential, program: Program, value: Any) -> Tensor:
    """As the stages do: what comes into one sums its gradients first."""
    before = None
    with use_store(Border()):
        for layer, place in zip(model, program.places, strict=True):
            if place != before:
                value = mapped(lambda one: one.view_as(one), value)
            before = place
            value = layer(*value) if isinstance(value, tuple) else layer(value)
    return value


def one_after_the_other(
    model: nn.Sequential, program: Program, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The loss, and the gradient of the inputs."""
    loss = Weighs(program.reduction)
    parts = [part.detach() for part in inputs.chunk(program.chunks)]
    wanted = targets.chunk(program.chunks)
    for part in parts:
        part.requires_grad_(program.input_gradients)
    if program.way == "step":
        total = torch.zeros(())
        for part, target in zip(parts, wanted, strict=True):
            weight = len(part) / len(inputs) if program.reduction == "mean" else 1.0
            one = loss(run_plain(model, program, part), target) * weight
            if one.requires_grad:
                one.backward()
            total = total + one.detach()
    else:
        outputs = [run_plain(model, program, part) for part in parts]
        whole = torch.cat(outputs).detach().requires_grad_()
        total = loss(whole, targets)
        total.backward()
        for output, gradient in zip(outputs, whole.grad.chunk(program.chunks), strict=True):
            if output.requires_grad:
                output.backward(gradient)
    gradients = [part.grad for part in parts if part.grad is not None]
    return total.detach(), torch.cat(gradients) if gradients else None


def backward_of_pipe(pipe, program: Program, inputs: Tensor, targets: Tensor) -> Tensor:
    """One mini-batch; gradients are in ``.grad`` after it."""
    loss = Weighs(program.reduction)
    if program.way == "step":
        return pipe.step(inputs, targets, loss=loss)
    if program.way == "loss":
        found = loss(pipe(inputs).to_here(), targets)
        if found.requires_grad:
            found.backward()
        return found.detach()
    with dist_autograd.context() as context:
        found = loss(pipe(inputs).to_here(), targets)
        if found.requires_grad:
            dist_autograd.backward(context, [found])
            pipe.at_workers(adopt_gradients, context)
            inputs.grad = dist_autograd.get_gradients(context).get(inputs)
    return found.detach()


def adopt_gradients(pipe: str, context: int) -> None:
    """Puts those of a context where those of another backward would be."""
    from weft.pipe._workers.part import part_of

    try:
        found = dist_autograd.get_gradients(context)
    except RuntimeError:
        return  # this worker has no gradient
    for module in part_of(pipe).layers.values():
        for one in module.parameters():
            one.grad = found.get(one)


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
        inputs.requires_grad_(program.input_gradients)
        loss = backward_of_pipe(pipe, program, inputs, targets)
        expected, gradient = one_after_the_other(plain, program, inputs, targets)
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)  # the sum's order
        assert (inputs.grad is None) == (gradient is None), "one input has no gradient"
        assert gradient is None or torch.equal(inputs.grad, gradient), (
            "the inputs' gradients differ"
        )
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
    output = pipe(inputs).to_here()
    with torch.no_grad():
        parts = [run_plain(plain, program, part) for part in inputs.chunk(program.chunks)]
    assert torch.equal(output, torch.cat(parts)), "the output differs"
    assert held_anywhere(pipe) == graphs_held(pipe) == 0
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
