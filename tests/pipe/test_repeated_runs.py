"""A stage that gives something else when it runs again for the backward is an error, not a gradient of
another function."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from pipe_models import MODES, WAYS, assert_same, gradients, make_pipe, plain_copy
from torch import nn

from weft.pipe import is_recomputing

pytestmark = pytest.mark.usefixtures("alone")
both = pytest.mark.parametrize("mode", MODES)
ways = pytest.mark.parametrize("way", WAYS)
OTHER = "gave another value"


class Stage(nn.Module):
    """Calls a function with itself and its input, which it needs in the backward."""

    def __init__(self, function) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("factor", torch.ones(4))
        self.runs = 0
        self.function = function

    def forward(self, x):
        return self.function(self, (x * self.weight).sin())


def counted(stage, x):
    stage.runs += 1
    return x * stage.runs


def written_buffer(stage, x):
    stage.factor.mul_(1.25)
    return x * stage.factor.clone()


def written_parameter(stage, x):
    with torch.no_grad():
        stage.weight.mul_(1.25)
    return x.detach() * stage.weight


def drawn_by_python(stage, x):
    return x * random.random()


def drawn_by_numpy(stage, x):
    return x * numpy.random.rand()


def bfloat16(stage, x):
    return counted(stage, x).bfloat16()


def integers_beside(stage, x):
    stage.runs += 1
    return x, torch.full((len(x),), stage.runs)


CHANGING = [
    counted,
    written_buffer,
    written_parameter,
    drawn_by_python,
    drawn_by_numpy,
    bfloat16,
    integers_beside,
]


def loss(output) -> torch.Tensor:
    output = output.local_value()
    return (output[0] if isinstance(output, tuple) else output).float().square().sum()


@ways
@pytest.mark.parametrize("function", CHANGING)
def test_a_recomputation_that_differs_is_an_error(way, function):
    pipe = make_pipe(nn.Sequential(Stage(function)), way, checkpoint="always")
    with pytest.raises(RuntimeError, match=OTHER):
        loss(pipe(torch.ones(6, 4))).backward()
    pipe = make_pipe(nn.Sequential(Stage(function)), way, checkpoint="never")
    loss(pipe(torch.ones(6, 4))).backward()


def test_what_hides_from_autograd_is_noticed():
    """A change of the input that counts no version."""

    def first(stage, x):
        return x

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            x.data.mul_(2)
            return self.linear(x)

    pipe = make_pipe(nn.Sequential(Stage(first), Hidden()), checkpoint="always")
    loss(pipe(torch.ones(6, 4))).backward()  # of a stage that has not run before, on a copy
    with pytest.raises(RuntimeError, match=OTHER):
        loss(pipe(torch.ones(6, 4))).backward()


@both
def test_a_run_with_a_graph_that_differs_is_an_error(mode):
    pipe = make_pipe(nn.Sequential(Stage(counted)), checkpoint=mode)
    x = torch.ones(6, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match=OTHER):
        torch.autograd.grad(loss(pipe(x)), x, create_graph=True)


@both
@ways
def test_what_is_the_same_again_is_no_error(mode, way):
    """Of any layout and type, with infinities; and a change that the recomputation leaves out."""

    def once(stage, x):
        if not is_recomputing():
            stage.factor.mul_(1.25)
        return x * stage.factor.clone()

    def odd(stage, x):
        z = torch.complex(x, x)
        return (
            x.t().contiguous().t() / 0,
            z.conj(),
            z.conj().imag,
            x.to_sparse(),
            x[:0],
            x[:, :1].expand(-1, 3),
        )

    def last(stage, x, z, y, s, none, wide):
        return x.nan_to_num(0, 0, 0) + z.real + y + s.to_dense() + none.sum() + wide[:, :1]

    class Last(Stage):
        def forward(self, *values):
            return self.function(self, *values) * self.weight

    pipe = make_pipe(
        nn.Sequential(Stage(once), Stage(odd), Last(last)), way, chunks=1, checkpoint=mode
    )
    for _ in range(2):
        loss(pipe(torch.ones(6, 4))).backward()


@both
@ways
def test_an_input_requires_a_gradient_in_every_run(mode, way):
    """What a stage asks its input decides the same in the forward and in the recomputation."""

    class Energy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            if not x.requires_grad:
                return x
            with torch.enable_grad():
                energy = self.linear(x).tanh().square().sum()
                return x + torch.autograd.grad(energy, x, create_graph=True)[0]

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), Energy(), Energy())
    pipe = make_pipe(plain_copy(plain), way, chunks=3, checkpoint=mode)
    for _ in range(2):
        x, y = (torch.linspace(-1, 1, 24).view(6, 4).requires_grad_() for _ in range(2))
        pipe.zero_grad(), plain.zero_grad()
        output, expected = pipe(x).local_value(), plain(y)
        assert_same(output, expected)
        output.square().sum().backward()
        expected.square().sum().backward()
        assert_same(gradients(pipe), gradients(plain), atol=1e-4)
        assert_same(x.grad, y.grad, atol=1e-4)
