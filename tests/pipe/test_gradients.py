"""Outputs, losses and gradients are the plain Sequential's, however the mini-batch is cut and run.

Tolerance: 1e-6 absolute and 1e-5 relative in float32, the difference between one matrix product and several.
"""

from __future__ import annotations

import threading

import pytest
import torch
from pipe_models import MODES, WAYS, assert_same, gradients, make_pipe, mlp, plain_copy
from torch import nn
from torch.autograd import Function

from weft.pipe import is_recomputing

pytestmark = pytest.mark.usefixtures("alone")


def convolutional() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True)),
        nn.Conv2d(3, 2, 3),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(8, 2),
    )


def recurrent() -> nn.Sequential:
    class Last(nn.Module):
        # A Pipe spreads a tuple over the arguments, a Sequential does not.
        def forward(self, output, *_state):
            return (output[0] if isinstance(output, tuple) else output)[:, -1]

    torch.manual_seed(2)
    return nn.Sequential(nn.GRU(3, 5, batch_first=True), Last(), nn.Linear(5, 2))


def tied() -> nn.Sequential:
    model = mlp()
    model[4] = nn.Linear(8, 8)
    model[4].weight = model[2].weight
    return model


MODELS = {
    "mlp": (mlp, (7, 4)),
    "convolutional": (convolutional, (7, 1, 6, 6)),
    "recurrent": (recurrent, (7, 6, 3)),
    "tied": (tied, (7, 4)),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("way", WAYS)
def test_equals_the_plain_sequential(kind, mode, chunks, way):
    make, shape = MODELS[kind]
    plain = make()
    pipe = make_pipe(plain_copy(plain), way, chunks=chunks, checkpoint=mode)
    x = torch.randn(shape)
    for _ in range(2):
        mine, reference = x.clone().requires_grad_(), x.clone().requires_grad_()
        output, expected = pipe(mine).local_value(), plain(reference)
        assert_same(output, expected)
        output.square().mean().backward()
        expected.square().mean().backward()
        assert_same(mine.grad, reference.grad)
        assert_same(gradients(pipe), gradients(plain))
        # Gradients add up over mini-batches, as ever.


@pytest.mark.parametrize("mode", MODES)
def test_torch_autograd_grad(mode):
    plain = mlp()
    pipe = make_pipe(plain_copy(plain), "threads", chunks=3, checkpoint=mode)
    x = torch.randn(6, 4, requires_grad=True)
    output = pipe(x).local_value().sum()
    wanted = [x, *list(pipe.parameters())[2:4]]
    found = torch.autograd.grad(output, wanted)
    expected = torch.autograd.grad(plain(x).sum(), [x, *list(plain.parameters())[2:4]])
    assert_same(found, expected)
    assert all(parameter.grad is None for parameter in pipe.parameters())


@pytest.mark.parametrize("mode", MODES)
def test_second_backward(mode):
    pipe = make_pipe(mlp(), "threads", chunks=3, checkpoint=mode)
    x = torch.randn(6, 4)
    output = pipe(x).local_value().sum()
    output.backward(retain_graph=True)
    once = gradients(pipe)
    output.backward()
    assert_same(gradients(pipe), [2 * grad for grad in once])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        output.backward()


@pytest.mark.parametrize("mode", MODES)
def test_double_backward(mode):
    """A gradient penalty: the gradient of a gradient, by input and by parameters."""
    plain = mlp()
    pipe = make_pipe(plain_copy(plain), "inline", chunks=3, checkpoint=mode)
    results = []
    for model in (lambda x: pipe(x).local_value(), plain):
        x = torch.linspace(-1, 1, 24).reshape(6, 4).requires_grad_()
        (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        results.append(x.grad)
    assert_same(*results)
    assert_same(gradients(pipe), gradients(plain), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_parameter_hooks_fire_once(mode):
    pipe = make_pipe(mlp(), "threads", chunks=4, checkpoint=mode)
    weight = pipe[2].weight
    seen = []
    weight.register_hook(lambda grad: seen.append("gradient") or 10 * grad)
    weight.register_post_accumulate_grad_hook(lambda _: seen.append("accumulated"))
    x = torch.randn(8, 4)
    pipe(x).local_value().sum().backward()
    assert seen == ["gradient", "accumulated"]
    plain = mlp()
    plain(x).sum().backward()
    assert_same(weight.grad, 10 * plain[2].weight.grad, atol=1e-5)


def test_accumulators_are_put_back():
    """After a run an outside graph finds the parameter's own accumulator."""
    pipe = make_pipe(mlp(), "threads", chunks=4)
    weight = pipe[0].weight
    pipe(torch.randn(8, 4)).local_value().sum().backward()
    before = weight.grad.clone()
    node = weight.expand_as(weight).grad_fn.next_functions[0][0]
    assert type(node).__name__ == "AccumulateGrad"
    weight.sum().backward()
    assert_same(weight.grad, before + 1)


@pytest.mark.parametrize("mode", MODES)
def test_frozen_and_unused(mode):
    """What needs no gradient gets none; what only some want is all that is computed."""
    plain = mlp()
    plain[2].requires_grad_(False)
    pipe = make_pipe(plain_copy(plain), "threads", chunks=3, checkpoint=mode)
    x = torch.randn(6, 4)
    pipe(x).local_value().sum().backward()
    plain(x).sum().backward()
    assert_same(gradients(pipe), gradients(plain))
    assert pipe[2].weight.grad is None


def test_no_grad_and_inference_mode():
    pipe = make_pipe(mlp(), "threads", chunks=3)
    plain = mlp()
    x = torch.randn(6, 4)
    with torch.no_grad():
        output = pipe(x).local_value()
    assert not output.requires_grad
    assert_same(output, plain(x).detach())
    with torch.inference_mode():
        output = pipe(x).local_value()
        assert output.is_inference()
        assert_same(output, plain(x))
    pipe.requires_grad_(False)
    assert not pipe(x).local_value().requires_grad


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_backward_in_inference_mode(mode, way):
    plain, pipe = mlp(), make_pipe(mlp(), way, chunks=3, checkpoint=mode)
    x = torch.randn(6, 4)
    for output in (plain(x), pipe(x).local_value()):
        with torch.inference_mode():
            output.backward(torch.ones(6, 3))
    assert_same(gradients(pipe), gradients(plain))


def test_an_output_that_is_a_parameter_has_memory_of_its_own():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return self.weight, x * 2

    pipe = make_pipe(nn.Sequential(Own()))
    output, _ = pipe(torch.ones(2)).local_value()
    output.mul_(3).sum().backward()
    assert_same(pipe[0].weight.detach(), torch.ones(2))
    assert_same(pipe[0].weight.grad, torch.full((2,), 3.0))


def test_another_backward_of_an_output_is_refused_while_one_runs():
    """Also while its stages run again for gradients with a graph."""
    came, goes = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x):
            if is_recomputing():
                came.set()
                assert goes.wait(60)
            return x * x

    x = torch.full((4, 2), 3.0, requires_grad=True)
    output = make_pipe(nn.Sequential(Waits()), checkpoint="never")(x).local_value()
    found = []

    def run() -> None:
        found.extend(torch.autograd.grad(output.sum(), x, create_graph=True))

    one = threading.Thread(target=run)
    one.start()
    assert came.wait(60)
    with pytest.raises(RuntimeError, match="runs already, on another thread"):
        output.sum().backward()
    goes.set()
    one.join()
    assert_same(found[0].detach(), torch.full((4, 2), 6.0))


@pytest.mark.parametrize("mode", MODES)
def test_in_place_on_the_input(mode):
    """A layer that changes its input gives the right result, also where the input is used again."""

    class Shift(nn.Module):
        def forward(self, x):
            return x.add_(1)

    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), Shift(), nn.Linear(4, 4), nn.ReLU(inplace=True))

    plain, pipe = model(), make_pipe(model(), "threads", chunks=2, checkpoint=mode)
    x = torch.randn(6, 4)
    for _ in range(2):
        pipe(x).local_value().sum().backward()
        plain(x).sum().backward()
    assert_same(gradients(pipe), gradients(plain))


@pytest.mark.parametrize("mode", MODES)
def test_in_place_on_the_mini_batch(mode):
    class Double(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    pipe = make_pipe(nn.Sequential(Double(), nn.Linear(4, 4)), chunks=2, checkpoint=mode)
    for _ in range(3):
        leaf = torch.ones(4, 4, requires_grad=True)
        x = leaf * 1
        pipe(x).local_value().sum().backward()
        assert_same(leaf.grad, 2 * pipe[1].weight.sum(0).detach().expand(4, 4))
        assert_same(pipe[1].bias.grad, torch.full((4,), 4.0))
        pipe.zero_grad()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_stage_that_begins_to_write_its_input(mode, way):
    """Where no copy was kept: right, or an error once and right afterwards; never twice."""

    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((4,), 2.0))
            self.writes = False

        def forward(self, x):
            x = x.add_(1) if self.writes else x + 1
            return x * self.weight

    pipe = make_pipe(nn.Sequential(Shift(), Shift()), way, chunks=2, checkpoint=mode)
    errors = 0
    for round_ in range(4):
        pipe[1].writes = round_ > 0
        pipe.zero_grad()
        try:
            pipe(torch.ones(4, 4)).local_value().sum().backward()
        except RuntimeError as error:
            assert "changed its input in place" in str(error)
            errors += 1
            continue
        # y = ((1 + 1) a + 1) b with a = b = 2, four rows.
        assert_same(gradients(pipe), [torch.full((4,), 16.0), torch.full((4,), 20.0)])
    assert errors == (0 if mode == "never" else 1)


def test_the_first_stage_that_begins_to_write_has_changed_the_callers_tensor():
    class Late(nn.Module):
        writes = False

        def forward(self, x):
            return x.add_(1) if self.writes else x + 1

    pipe = make_pipe(nn.Sequential(Late(), nn.Linear(2, 2)), chunks=2)
    pipe(torch.zeros(4, 2))
    pipe[0].writes = True
    with pytest.raises(RuntimeError, match="with new tensors where the stage gets the caller's"):
        pipe(torch.zeros(4, 2))
    assert_same(pipe(torch.zeros(4, 2)).local_value(), pipe[1](torch.ones(4, 2)))


def test_changed_later_is_an_error():
    """A parameter changed in place between forward and backward is found, as everywhere in torch."""
    pipe = make_pipe(mlp(), chunks=2, checkpoint="never")
    output = pipe(torch.randn(4, 4)).local_value()
    with torch.no_grad():
        pipe[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_nobody_knows_of_is_an_error(mode):
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.hidden = [torch.ones(4, requires_grad=True)]

        def forward(self, x):
            return self.linear(x) * self.hidden[0]

    pipe = make_pipe(nn.Sequential(Hidden()), chunks=2, checkpoint=mode)
    with pytest.raises(RuntimeError, match="registered parameters"):
        pipe(torch.randn(4, 4)).local_value().sum().backward()


def test_custom_functions_and_checkpoints_inside():
    from torch.utils.checkpoint import checkpoint

    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            x = checkpoint(self.linear, x, use_reentrant=False)
            return Square.apply(x)

    torch.manual_seed(0)
    plain = nn.Sequential(Stage(), Stage())
    x = torch.randn(6, 4)
    plain(x).sum().backward()
    for mode in MODES:
        pipe = make_pipe(plain_copy(plain), "threads", chunks=3, checkpoint=mode)
        pipe.zero_grad()
        pipe(x).local_value().sum().backward()
        assert_same(gradients(pipe), gradients(plain), atol=1e-5)
