"""Exceptions surface as themselves, and the Pipe works again."""

from __future__ import annotations

import copy
import threading
import traceback

import pytest
import torch
from pipe_models import MODES, WAYS, assert_same, gradients, make_pipe, mlp
from torch import nn
from waiting import takes

from weft.pipe import is_recomputing

pytestmark = pytest.mark.usefixtures("alone")


class Failure(Exception):
    pass


class Failing(nn.Module):
    """Fails in one micro-batch, as long as it is armed."""

    def __init__(self, error=None, at=0, recomputing=False):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.error, self.at, self.recomputing = error, at, recomputing
        self.count = 0

    def forward(self, x):
        if is_recomputing() == self.recomputing and self.error is not None:
            self.count += 1
            if self.count == self.at + 1:
                self.count = 0
                raise self.error
        return self.linear(x)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Failure, KeyboardInterrupt, SystemExit])
def test_the_exception_itself(way, kind):
    error = kind("on purpose")
    failing = Failing(error, at=1)
    pipe = make_pipe(nn.Sequential(nn.Linear(4, 4), failing, nn.Linear(4, 4)), way, chunks=3)
    x = torch.randn(6, 4)
    for _ in range(2):
        failing.count = 0
        with pytest.raises(kind) as caught:
            pipe(x)
        assert caught.value is error
        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert frames.count("forward") >= 2  # the Pipe's and the stage's
        assert "raise self.error" in "".join(traceback.format_tb(caught.value.__traceback__))
    failing.error = None
    pipe(x).local_value().sum().backward()
    assert all(grad is not None for grad in gradients(pipe))


@pytest.mark.parametrize("way", WAYS)
def test_the_earliest_in_the_schedule(way):
    """(1, 0) and (0, 1) run in the same clock; the former comes first, though it fails later."""
    late = threading.Event()

    class First(Failing):
        def forward(self, x):
            if self.count == 1:
                late.wait(0.2)
            return super().forward(x)

    class Second(Failing):
        def forward(self, x):
            try:
                return super().forward(x)
            finally:
                late.set()

    first, second = First(Failure("first"), at=1), Second(Failure("second"), at=0)
    pipe = make_pipe(nn.Sequential(first, second), way, chunks=3)
    with pytest.raises(Failure, match="first"):
        pipe(torch.randn(6, 4))


@pytest.mark.parametrize("way", WAYS)
def test_the_others_stop(way):
    last = Failing()
    ran = []
    last.register_forward_pre_hook(lambda *_: ran.append(1))
    pipe = make_pipe(nn.Sequential(Failing(Failure("stop"), at=0), last), way, chunks=8)
    with pytest.raises(Failure):
        pipe(torch.randn(8, 4))
    assert not ran


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Failure, KeyboardInterrupt])
def test_in_recomputation(way, kind):
    error = kind("again")
    pipe = make_pipe(
        nn.Sequential(Failing(error, recomputing=True), nn.Linear(4, 4)), way, chunks=3
    )
    output = pipe(torch.randn(6, 4)).local_value()
    with pytest.raises(kind) as caught:
        output.sum().backward()
    assert caught.value is error
    pipe[0].error = None
    pipe.zero_grad()
    pipe(torch.randn(6, 4)).local_value().sum().backward()
    assert all(grad is not None for grad in gradients(pipe))


@pytest.mark.parametrize("way", WAYS)
def test_in_a_backward(way):
    class Raise(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, _grad):
            raise Failure("in backward")

    class Stage(nn.Module):
        def forward(self, x):
            return Raise.apply(x)

    pipe = make_pipe(nn.Sequential(nn.Linear(4, 4), Stage()), way, chunks=3, checkpoint="never")
    with pytest.raises(Failure, match="in backward"):
        pipe(torch.randn(6, 4)).local_value().sum().backward()


def test_ctrl_c_while_the_stages_work():
    """SIGINT reaches the caller, though it waits in C++."""
    import os
    import signal

    started = threading.Event()

    class Slow(nn.Module):
        def forward(self, x):
            started.set()
            takes(0.3)
            return x

    pipe = make_pipe(nn.Sequential(Slow(), Slow()), "threads", chunks=20)
    killer = threading.Thread(
        target=lambda: (started.wait(10), os.kill(os.getpid(), signal.SIGINT))
    )
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored
    try:
        killer.start()
        with pytest.raises(KeyboardInterrupt):
            pipe(torch.randn(20, 4))
        killer.join(10)
    finally:
        signal.signal(signal.SIGINT, before)


def test_script_errors():
    class Bad(nn.Module):
        def forward(self, x):
            assert x.sum() > 1e9, "too small"
            return x

    pipe = make_pipe(nn.Sequential(torch.jit.script(Bad())), chunks=2)
    with pytest.raises(torch.jit.Error, match="too small"):
        pipe(torch.ones(2))


def test_gradients_after_an_error_are_right():
    pipe, plain = make_pipe(mlp(), "threads", chunks=3), mlp()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        pipe(torch.randn(6, 5))
    x = torch.randn(6, 4)
    pipe(x).local_value().sum().backward()
    plain(x).sum().backward()
    assert_same(gradients(pipe), gradients(plain))


@pytest.mark.parametrize("again", [1, 3])
def test_a_recomputation_that_returns_another_number_of_tensors(again):
    """Its gradients would go to the wrong outputs."""

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            return tuple(y * (k + 1) for k in range(again if is_recomputing() else 2))

    pipe = make_pipe(nn.Sequential(Stage()), chunks=2, checkpoint="always")
    first, second = pipe(torch.randn(4, 4)).local_value()
    with pytest.raises(RuntimeError, match=f"stage 0 .* {again} tensors? when it ran again"):
        (first + second).sum().backward()


class FailsOnce(torch.autograd.Function):
    """Its backward fails while it is armed, once."""

    armed = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if FailsOnce.armed:
            FailsOnce.armed = False
            raise Failure("in backward")
        return grad


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_another_backward_after_one_that_failed(way, mode, retain):
    """Right where the graph was kept; else the error of a second backward."""

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return FailsOnce.apply(self.linear(x))

    plain = nn.Sequential(Stage(), nn.Linear(4, 4))
    pipe = make_pipe(copy.deepcopy(plain), way, chunks=4, checkpoint=mode)
    x = torch.randn(8, 4)
    output = pipe(x).local_value().sum()
    FailsOnce.armed = True
    with pytest.raises(Failure, match="in backward"):
        output.backward(retain_graph=retain)
    pipe.zero_grad()
    if not retain:
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            output.backward()
        return
    output.backward()
    plain(x).sum().backward()
    assert_same(gradients(pipe), gradients(plain))


def test_what_needs_a_schedule_says_so():
    pipe = make_pipe(mlp(), WAYS[0], chunks=2)
    with pytest.raises(NotImplementedError, match="no schedule, and step is for stages on workers"):
        pipe.step(torch.ones(2, 4), torch.ones(2, 4), loss=nn.MSELoss())
    with pytest.raises(NotImplementedError, match="close is for stages on workers"):
        pipe.close()
