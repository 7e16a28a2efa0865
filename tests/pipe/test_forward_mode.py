"""Forward-mode AD inside of stages: torch counts its levels per process, and one stage at a time has
one. Around a Pipe: test_transforms.py."""

from __future__ import annotations

import sys

import pytest
import torch
from pipe_models import MODES, WAYS, F, assert_same, gradients, make_pipe, piped
from torch import nn
from torch.autograd import forward_ad
from torch.func import hessian, jacfwd, jvp

pytestmark = pytest.mark.usefixtures("alone")
both = pytest.mark.parametrize("mode", MODES)
ways = pytest.mark.parametrize("way", WAYS)

X = torch.linspace(-1, 1, 24).reshape(6, 4)


def slope_by_jvp(weight, x):
    return jvp(lambda v: (v * weight).sin(), (x,), (torch.ones_like(x),))[1]


def slope_by_jacfwd(weight, x):
    return torch.stack([jacfwd(lambda v: (v * weight).sin().sum())(row) for row in x])


def slope_by_hessian(weight, x):
    return hessian(lambda v: (v * weight).sin().sum())(x).sum(dim=(2, 3))


def slope_by_dual_level(weight, x):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x * 1, torch.ones_like(x))
        return forward_ad.unpack_dual((dual * weight).sin()).tangent


slopes = pytest.mark.parametrize(
    "slope", [slope_by_jvp, slope_by_jacfwd, slope_by_hessian, slope_by_dual_level]
)


@pytest.fixture
def switching():
    """Threads of Python that take turns far more often than usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@both
@ways
@slopes
@pytest.mark.usefixtures("switching")
def test_forward_mode_inside_of_several_stages(mode, way, slope):
    """torch counts its levels per process: a stage must not end another's."""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), F(slope), nn.Linear(4, 4), F(slope), F(slope))

    plain, pipe = piped(mode, way, make)
    for _ in range(8):
        plain.zero_grad(), pipe.zero_grad()
        torch.cat([plain(x) for x in X.chunk(3)]).square().sum().backward()
        pipe(X).square().sum().backward()
        assert_same(gradients(pipe), gradients(plain), atol=1e-4)


@both
@pytest.mark.usefixtures("switching")
def test_forward_mode_inside_of_stages_and_around(mode):
    """The levels of the caller are as they were, before and after stages have had theirs."""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), F(slope_by_jvp), F(slope_by_jvp))

    plain, pipe = piped(mode, "threads", make)
    for _ in range(3):
        found = []
        for model in (plain, pipe):
            own = jvp(model, (X,), (torch.ones_like(X),))
            model(X).sum().backward()
            found.append((own, jacfwd(lambda x, model=model: model(x).sum())(X), gradients(model)))
        assert_same(*found, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [1, 2])
def test_views_in_inference_mode_keep_their_tangents(mode, chunks):
    """As those of a plain model do; whatever computes has none there."""
    plain = nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 2)))
    pipe = make_pipe(nn.Sequential(*plain), chunks=chunks, checkpoint=mode)
    x = torch.linspace(-1, 1, 16).view(4, 4)
    for _ in range(2):  # the first time it is not known whether a stage writes
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, 2 * x)
            with torch.inference_mode():
                output, expected = pipe(dual).local_value(), plain(dual)
            assert output.is_inference() == expected.is_inference()
            assert_same(
                tuple(forward_ad.unpack_dual(output)), tuple(forward_ad.unpack_dual(expected))
            )
        with torch.inference_mode():
            assert pipe(x).local_value().is_inference() == plain(x).is_inference()


class SlopeInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


class Sine(nn.Module):
    def forward(self, x):
        return SlopeInBackward.apply(x)


@both
@ways
@pytest.mark.usefixtures("switching")
def test_forward_mode_inside_of_the_backward_of_several_stages(mode, way):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), Sine(), nn.Linear(4, 4), Sine(), F(slope_by_jvp))

    plain, pipe = piped(mode, way, make)
    for _ in range(8):
        plain.zero_grad(), pipe.zero_grad()
        plain(X).square().sum().backward()
        pipe(X).square().sum().backward()
        assert_same(gradients(pipe), gradients(plain), atol=1e-4)


def raise_inside(x):
    raise KeyError("inside")


def raise_in_a_dual_level(x):
    with forward_ad.dual_level():
        raise_inside(x)


@both
@pytest.mark.parametrize(
    "fails",
    [
        lambda x: jvp(raise_inside, (x,), (x,)),
        lambda x: jacfwd(raise_inside)(x),
        raise_in_a_dual_level,
    ],
    ids=["jvp", "jacfwd", "dual_level"],
)
def test_a_stage_that_raises_leaves_its_level(mode, fails):
    class Stage(F):
        raises = False

        def forward(self, x):
            return fails(x) if self.raises else super().forward(x)

    stages = Stage(slope_by_jvp), Stage(slope_by_dual_level)
    pipe = make_pipe(nn.Sequential(*stages), "threads", chunks=3, checkpoint=mode)
    for _ in range(3):
        pipe[1].raises = True
        with pytest.raises(KeyError, match="inside"):
            pipe(X)
        pipe[1].raises = False
        pipe(X).local_value().sum().backward()
