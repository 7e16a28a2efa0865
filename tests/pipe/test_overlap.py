"""Two CPU stages are inside at the same time, forward and backward: they meet at a barrier."""

from __future__ import annotations

import threading

import pytest
import torch
from pipe_models import MODES, make_pipe
from torch import nn

from weft import _C
from weft.pipe import is_recomputing

pytestmark = pytest.mark.usefixtures("alone")


class Meeting(torch.autograd.Function):
    """Waits for the other stage where two cells of a 2 x 2 schedule are due in the same clock."""

    @staticmethod
    def forward(ctx, x, stage, barrier):
        ctx.meets = _C.pipe.micro_batch()[0] != stage
        ctx.barrier = barrier
        if ctx.meets and barrier is not None and not is_recomputing():
            barrier.wait(30)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.meets and ctx.barrier is not None:
            ctx.barrier.wait(30)
        return grad, None, None


class Stage(nn.Module):
    def __init__(self, stage: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.stage = stage
        self.barrier: threading.Barrier | None = None

    def forward(self, x):
        return Meeting.apply(self.linear(x), self.stage, self.barrier)


@pytest.mark.parametrize("mode", MODES)
def test_stages_meet(mode):
    pipe = make_pipe(nn.Sequential(Stage(0), Stage(1)), "threads", chunks=2, checkpoint=mode)
    x = torch.randn(4, 4)
    pipe(
        x
    ).local_value().sum().backward()  # after this it is known that they draw no random numbers
    barrier = threading.Barrier(2)
    for stage in pipe:
        stage.barrier = barrier
    pipe(x).local_value().sum().backward()
