"""Gradients as the driver sees them: those of its inputs, and whether replicas of stages have the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.pipe._workers.job import Outcome
from weft.pipe._workers.splitting import wanting_gradients
from weft.pipe._workers.values import placed_like


class ReplicatedGradients:
    """The driver's note of whether the replicas of each stage have the same gradients.

    Args:
        replicated: whether a stage has replicas; otherwise a failed step leaves nothing to differ.
    """

    def __init__(self, replicated: bool) -> None:
        self._replicated = replicated
        #: Whether a step failed: some replicas may have its sums and others not.
        self.broken = False

    def check(self, context: int | None = None) -> None:
        """Raises RuntimeError if they may differ, or would in a distributed autograd context."""
        if context is not None and self._replicated:
            raise RuntimeError(
                "replicas of a stage do not add up gradients in a torch.distributed.autograd.context(): "
                "call loss.backward() outside of one, or pipe.step"
            )
        if self.broken and self._replicated:
            raise RuntimeError(
                "a step of this Pipe failed, and the gradients of the replicas of a stage may differ: "
                "call zero_grad() before the next step"
            )


def input_gradients(outcomes: list[Outcome]) -> list[Tensor | None]:
    """The gradients of all micro-batches' inputs that want one, in order; empty if there is none."""
    found = {number: part for outcome in outcomes for number, part in outcome.gradients.items()}
    return [one for number in sorted(found) for one in found[number]]


def backward_of_inputs(micro_batches: list[Any], outcomes: list[Outcome]) -> None:
    """Continues the backward in this process's graph, with the gradients of the inputs."""
    found = input_gradients(outcomes)
    inputs = wanting_gradients(micro_batches) if found else []
    pairs = zip(inputs, placed_like(found, inputs), strict=True)
    there = [(tensor, one) for tensor, one in pairs if one is not None]
    if there:
        torch.autograd.backward([tensor for tensor, _ in there], [one for _, one in there])
