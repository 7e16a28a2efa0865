"""Two CPU stages are inside at the same time, forward and backward: they meet at a barrier."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch
from pipe_models import MODES, F, make_pipe
from torch import nn
from waiting import takes, wait_until

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


class Together:
    """Counts those who are inside at the same time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = self.most = 0

    def wait(self, seconds: float) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        takes(seconds)
        with self.lock:
            self.inside -= 1


class Waiting(torch.autograd.Function):
    """Takes its time both ways without using a core."""

    @staticmethod
    def forward(ctx, x, waiting):
        ctx.waiting = waiting
        waiting.wait(0.02)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.waiting.wait(0.02)
        return grad, None


@pytest.mark.parametrize("mode", MODES)
def test_waiting_stages_overlap_from_the_first_call(mode):
    waiting = Together()
    stages = [F(lambda weight, x: Waiting.apply(x * weight, waiting)) for _ in range(2)]
    pipe = make_pipe(nn.Sequential(*stages), "auto", chunks=4, checkpoint=mode)
    output = pipe(torch.ones(4, 1)).local_value()
    assert waiting.most == 2, "no two stages of the first forward waited at the same time"
    waiting.most = 0
    output.sum().backward()
    assert waiting.most == 2, "no two stages of the first backward waited at the same time"


class Marking(nn.Module):
    """Works for some milliseconds and counts its runs, where numpy sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.eye(256))
        self.register_buffer("runs", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.mm(x, self.matrix)
        self.runs.add_(1)
        return x


@pytest.mark.parametrize("way", ["inline", "threads"])
def test_script_stages_run_while_another_thread_keeps_the_gil(way):
    m = 20
    layers = [torch.jit.script(Marking()) for _ in range(2)]
    pipe = make_pipe(nn.Sequential(*layers), way, chunks=m).eval()
    first, last = (layer.runs.numpy() for layer in layers)

    def run():
        with torch.no_grad():
            pipe(torch.ones(m * 64, 256))

    def runs_of_last() -> tuple[float, float]:
        """Before this thread keeps the GIL, and while it does."""
        first[0] = last[0] = 0
        caller = threading.Thread(target=run)
        before = sys.getswitchinterval()
        sys.setswitchinterval(120)  # nobody else gets the GIL unless this thread gives it
        try:
            caller.start()
            wait_until(lambda: first[0] >= 1, "the first stage has run once", interval=1e-4)
            seen = last[0]
            end = time.monotonic() + 20
            while last[0] < m and time.monotonic() < end:
                pass  # without a word to the interpreter, which would give the GIL away
            done = last[0]
        finally:
            sys.setswitchinterval(before)
        caller.join(60)
        return seen, done

    run()  # scripts are compiled by now
    for _ in range(20):
        seen, done = runs_of_last()
        assert done == m
        if seen < m / 2:
            return
    pytest.fail("this thread never came in time: the stages had run before it kept the GIL")
