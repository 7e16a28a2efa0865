"""A backward in two halves gives the gradients of a whole one, bit for bit, or is not split."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from weft import _C

SEEDS = range(30)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Twice(nn.Module):
    """Uses one layer in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Branches(nn.Module):
    """Uses one layer in two places, neither of which leads to the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(x)) * self.layer(torch.sigmoid(x))


class Tied(nn.Module):
    """Uses another layer's parameter outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) @ self.layer.weight


class Hooked(nn.Module):
    """Scales the gradient of what its layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y.register_hook(lambda gradient: gradient * 3)
        return y


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        output, (hidden, _) = self.lstm(x)
        return output + hidden


class Pieces(nn.Module):
    """A node of several outputs leads to each of the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 6), nn.Linear(3, 6, bias=False)])
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        left, right = (x * self.scale).chunk(2, dim=-1)
        return self.layers[0](left) * self.layers[1](right)


class Sliced(nn.Module):
    """Writes into a part of a tensor that has a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[:, :1] = self.layer(x)[:, :1]
        return y


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return OwnFunction.apply(x, self.weight)


class ChangesItsGradient(OwnFunction):
    @staticmethod
    def backward(ctx, gradient):
        of_x, of_weight = OwnFunction.backward(ctx, gradient)
        return gradient.copy_(of_x), of_weight


class ChangesGradients(Own):
    def forward(self, x: Tensor) -> Tensor:
        return ChangesItsGradient.apply(x, self.weight)


SPLIT = {
    "perceptron": lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6)),
    "norm": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.BatchNorm1d(6)),
    "in place": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6)),
    "residual": lambda: Residual(nn.Sequential(nn.Linear(6, 6), Residual(nn.Linear(6, 6)))),
    "transformer": lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0, batch_first=True),
    "shared by branches": Branches,
    "recurrent": Recurrent,
    "pieces": Pieces,
    "sliced": Sliced,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(6, 6)),
    "own function": Own,
}
WHOLE = {
    "twice": Twice,
    "tied": Tied,
    "hooked": Hooked,
}
NEITHER = {"no parameters": nn.Tanh}


def by_halves(model: nn.Module, inputs: list[Tensor], weights: list[Tensor]):
    outputs = [model(one) for one in inputs]
    half = _C.pipe.SplitBackward(outputs, inputs)
    split = half.is_split()
    before = {name: one.grad for name, one in model.named_parameters()}
    found = half.input_gradients(weights)
    if split:
        assert all(one.grad is before[name] for name, one in model.named_parameters())
    half.accumulate_parameter_gradients()
    return split, found


def compare(model: nn.Module, seed: int = 0) -> bool:
    """Whether the backward was split; two micro-batches, whose gradients add up."""
    torch.manual_seed(seed)
    plain = copy.deepcopy(model)
    split = False
    for _ in range(2):
        x = torch.randn(4, 6, requires_grad=True)
        other = x.detach().clone().requires_grad_()
        weight = torch.randn(4, 6)
        plain(other).backward(weight)
        split, (found,) = by_halves(model, [x], [weight])
        assert torch.equal(found, other.grad)
    for (name, one), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(one.grad, expected.grad), name
    return split


@pytest.mark.parametrize("name", SPLIT)
def test_models_that_can_be_split(name):
    assert compare(SPLIT[name]())


@pytest.mark.parametrize("name", [*WHOLE, *NEITHER])
def test_models_that_cannot_be_split(name):
    assert not compare({**WHOLE, **NEITHER}[name]())


@pytest.mark.parametrize("seed", SEEDS)
def test_random_stacks(seed):
    chance = random.Random(seed)
    names = chance.choices([*SPLIT, *SPLIT, *WHOLE, *NEITHER], k=chance.randint(1, 4))
    print(f"seed {seed}: {names}")
    torch.manual_seed(seed)
    layers = [{**SPLIT, **WHOLE, **NEITHER}[name]() for name in names]
    can = any(name in SPLIT for name in names) and not any(name in WHOLE for name in names)
    assert compare(nn.Sequential(*layers), seed) == can


class Compiled(nn.Module):
    """torch.compile's backward uses up what its forward kept."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.compile(self.layers, backend="aot_eager")(x)


def test_a_compiled_layer_makes_it_whole():
    torch._dynamo.reset()  # other tests may have compiled so often that it gives up
    assert not compare(nn.Sequential(nn.Linear(6, 6), Compiled()))


def test_hooks_of_parameters_run_once():
    model, seen = nn.Linear(6, 6), []
    model.weight.register_hook(lambda gradient: seen.append(gradient) or gradient * 2)
    model.bias.register_post_accumulate_grad_hook(lambda bias: seen.append(bias.grad.clone()))
    x = torch.ones(4, 6, requires_grad=True)
    split, _ = by_halves(model, [x], [torch.ones(4, 6)])
    assert split and len(seen) == 2
    assert torch.equal(model.weight.grad, torch.full((6, 6), 8.0))


def test_an_input_that_nothing_depends_on_has_no_gradient():
    model, x, unused = nn.Linear(6, 6), torch.ones(2, 6, requires_grad=True), torch.ones(1)
    half = _C.pipe.SplitBackward([model(x)], [x, unused.requires_grad_()])
    found = half.input_gradients([torch.ones(2, 6)])
    assert half.is_split() and found[1] is None
    half.accumulate_parameter_gradients()
    assert model.weight.grad is not None


def test_an_output_that_no_input_leads_to_makes_it_whole():
    model, alone = nn.Linear(6, 6), nn.Parameter(torch.ones(3))
    x = torch.ones(2, 6, requires_grad=True)
    half = _C.pipe.SplitBackward([model(x), alone * 2], [x])
    assert not half.is_split()
    half.input_gradients([torch.ones(2, 6), torch.ones(3)])
    assert torch.equal(alone.grad, torch.full((3,), 2.0)) and model.weight.grad is not None
    half.accumulate_parameter_gradients()
    assert torch.equal(alone.grad, torch.full((3,), 2.0))


def test_an_input_that_is_given_on():
    x = torch.ones(2, 6, requires_grad=True)
    model = nn.Linear(6, 6)
    half = _C.pipe.SplitBackward([x, model(x)], [x])
    found = half.input_gradients([torch.full((2, 6), 5.0), torch.zeros(2, 6)])
    assert torch.equal(found[0], torch.full((2, 6), 5.0))
    half.accumulate_parameter_gradients()
    assert torch.equal(model.bias.grad, torch.zeros(6))


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise KeyError("on purpose")


def test_an_error_in_a_layer_comes_as_it_was():
    x = torch.ones(2, 6, requires_grad=True)
    half = _C.pipe.SplitBackward([nn.Linear(6, 6)(Fails.apply(x))], [x])
    with pytest.raises(KeyError, match="on purpose"):
        half.input_gradients([torch.ones(2, 6)])


def test_a_gradient_that_is_changed_in_place_is_noticed():
    x = torch.ones(4, 6, requires_grad=True)
    with pytest.raises(
        RuntimeError, match=r"reaches ChangesItsGradientBackward .* changed in place"
    ):
        by_halves(ChangesGradients(), [x], [torch.ones(4, 6)])
