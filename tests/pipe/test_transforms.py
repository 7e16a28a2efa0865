"""What transforms a model transforms one with a Pipe: torch.func, forward-mode AD, functional_call,
parametrizations, torch.compile. Or an error says that it does not."""

from __future__ import annotations

import pytest
import torch
from pipe_models import MODES, WAYS, F, assert_same, gradients, make_pipe, piped, small
from threads import in_threads
from torch import nn
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from torch.nn.utils import parametrize

pytestmark = pytest.mark.usefixtures("alone")
both = pytest.mark.parametrize("mode", MODES)
ways = pytest.mark.parametrize("way", WAYS)

X = torch.linspace(-1, 1, 24).reshape(6, 4)


def tensors_of(model) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def loss(model, parameters, x):
    return functional_call(model, parameters, (x,)).square().sum()


@both
@ways
def test_func_grad_over_parameters(mode, way):
    found = [
        list(grad(lambda p, model=model: loss(model, p, X))(tensors_of(model)).values())
        for model in piped(mode, way)
    ]
    assert_same(found[1], found[0])


@both
@ways
def test_func_vjp_jvp_and_jacobians_over_the_input(mode, way):
    for transform in (
        lambda f: vjp(f, X)[1](torch.ones(6, 3))[0],
        lambda f: jvp(f, (X,), (torch.ones_like(X),))[1],
        lambda f: jacrev(f)(X),
        lambda f: jacfwd(f)(X),
        lambda f: hessian(lambda x: f(x).square().sum())(X),
        lambda f: grad(lambda x: grad(lambda y: f(y).sum())(x).square().sum())(X),
        lambda f: (linearize(f, X)[0], linearize(f, X)[1](torch.ones_like(X))),
        lambda f: grad_and_value(lambda x: f(x).square().sum())(X),
        lambda f: grad(functionalize(lambda x: f(x).square().sum()))(X),
        lambda f: functionalize(grad(lambda x: f(x).square().sum()))(X),
    ):
        plain, pipe = piped(mode, way)
        assert_same(transform(pipe), transform(plain), atol=1e-5)


@both
@ways
def test_func_linearize_and_grad_and_value_over_parameters(mode, way):
    found = []
    for model in piped(mode, way):
        own = tensors_of(model)
        output, push = linearize(lambda p, model=model: functional_call(model, p, (X,)), own)
        slopes, value = grad_and_value(lambda p, model=model: loss(model, p, X))(own)
        found.append((output, push(own), *slopes.values(), value))
    assert_same(*found, atol=1e-5)


@both
@ways
def test_functionalize_around_a_model_with_in_place_layers(mode, way):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))

    for remove in ("mutations", "mutations_and_views"):
        found = []
        for model in piped(mode, way, make):
            output = functionalize(model, remove=remove)(X)
            output.square().sum().backward()
            found.append([output.detach(), *gradients(model)])
        assert_same(*found)


@both
@ways
def test_grad_and_value_and_functionalize_inside_a_stage(mode, way):
    def slope(weight, x):
        steps, value = grad_and_value(lambda v: (v * weight).tanh().square().sum(dim=0).prod())(x)
        return steps * weight + value

    def in_place(weight, x):
        def change(v):
            y = v.clone()
            y.view(-1)[0].add_(1)
            return y.mul_(weight)

        return functionalize(change)(x)

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), F(slope), F(in_place), nn.Linear(4, 4), F(slope))

    plain, pipe = piped(mode, way, make)
    for model, inputs in ((plain, X.chunk(3)), (pipe, [X])):
        for x in inputs:
            model(x).square().sum().backward()
    assert_same(gradients(pipe), gradients(plain), atol=1e-4)


@both
@ways
def test_vmap_over_batches_and_over_models(mode, way):
    plain, pipe = piped(mode, way)
    batches = torch.randn(5, 6, 4)
    assert_same(vmap(pipe)(batches), vmap(plain)(batches))
    found = []
    for model in (pipe, plain):
        parameters = tensors_of(model)
        per_sample = vmap(grad(lambda p, x, model=model: loss(model, p, x)), in_dims=(None, 0))
        found.append(list(per_sample(parameters, batches).values()))
    assert_same(found[0], found[1], atol=1e-5)


@both
@ways
def test_dual_tensors_keep_their_tangents(mode, way):
    plain, pipe = piped(mode, way)
    found = []
    for model in (pipe, plain):
        with forward_ad.dual_level():
            output = model(forward_ad.make_dual(X, torch.ones_like(X)))
            by_input = forward_ad.unpack_dual(output).tangent
            duals = {
                name: forward_ad.make_dual(p, torch.ones_like(p))
                for name, p in tensors_of(model).items()
            }
            output = functional_call(model, duals, (X,))
            by_parameters = forward_ad.unpack_dual(output).tangent
        found.append((by_input, by_parameters))
    assert_same(*found)


@both
@ways
def test_functional_call_with_leaves(mode, way):
    """The recomputation uses the tensors of the forward, not the module's own."""
    found = []
    for model in piped(mode, way):
        own = tensors_of(model)
        other = {name: (2 * p).requires_grad_() for name, p in own.items()}
        output = functional_call(model, other, (X,))
        result = torch.autograd.grad(output.square().sum(), list(other.values()))
        x = X.clone().requires_grad_()
        slope = torch.autograd.grad(
            functional_call(model, other, (x,)).sum(), x, create_graph=True
        )[0]
        second = torch.autograd.grad(slope.square().sum(), list(other.values()), allow_unused=True)
        found.append((result, [s for s in second if s is not None and s.any()]))
        assert all(p.grad is None for p in model.parameters())
        for name, p in model.named_parameters():
            assert torch.equal(p, own[name])
    assert_same(*found, atol=1e-5)


@both
@ways
def test_functional_call_with_a_history(mode, way):
    """MAML: a step on the inner loss, and the gradient of the outer loss through that step."""
    found = []
    for model in piped(mode, way):
        leaves = {name: p.requires_grad_() for name, p in tensors_of(model).items()}
        inner = functional_call(model, leaves, (X,)).square().sum()
        steps = torch.autograd.grad(inner, list(leaves.values()), create_graph=True)
        stepped = {name: p - 0.1 * g for (name, p), g in zip(leaves.items(), steps, strict=True)}
        outer = functional_call(model, stepped, (X + 1,)).square().sum()
        found.append(torch.autograd.grad(outer, list(leaves.values())))
    assert_same(*found, atol=1e-3, rtol=1e-3)


@both
@ways
def test_functional_parameters_that_depend_on_each_other(mode, way):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.ones(4))
            self.b = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x * self.a + self.b

    found = []
    for model in piped(mode, way, lambda: nn.Sequential(Two(), nn.Tanh())):
        base = torch.full((4,), 0.5, requires_grad=True)
        a = base * 1
        names = [name for name, _ in model.named_parameters()]
        output = functional_call(model, dict(zip(names, (a, a * 2), strict=True)), (X,))
        found.append(torch.autograd.grad(output.sum(), base))
    assert_same(*found)


@both
@ways
def test_functional_buffers(mode, way):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            return self.linear(x) * self.scale

    def make():
        torch.manual_seed(0)
        return nn.Sequential(Scale(), Scale())

    found = []
    for model in piped(mode, way, make):
        buffers = {name: 3 * b for name, b in model.named_buffers()}
        functional_call(model, buffers, (X,)).square().sum().backward()
        found.append(gradients(model))
    assert_same(*found)


@both
@ways
def test_a_buffer_that_a_stage_replaces(mode, way):
    """Stays what the forward made of it, whatever a recomputation puts in its place."""

    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("runs", torch.zeros(()))

        def forward(self, x):
            self.runs = self.runs + 1
            return self.linear(x)

    pipe = make_pipe(nn.Sequential(Count(), Count()), way, chunks=3, checkpoint=mode)
    pipe(X).local_value().sum().backward()
    assert [stage.runs.item() for stage in pipe] == [3, 3]


@both
@ways
def test_parameters_replaced_before_the_backward(mode, way):
    found = []
    for model in piped(mode, way):
        first = model[0] if isinstance(model, nn.Sequential) else model.pipe[0]
        weight = first.weight
        output = model(X).square().sum()
        first.weight = nn.Parameter(torch.zeros_like(weight))
        output.backward()
        assert first.weight.grad is None
        found.append(weight.grad)
    assert_same(*found)


@both
@ways
def test_parameters_changed_before_the_backward(mode, way):
    """In every mode that is the error it is without a Pipe: a recomputation would use the new values."""
    pipe = make_pipe(small(), way, chunks=3, checkpoint=mode)
    for create_graph in (False, True):
        x = X.clone().requires_grad_()
        output = pipe(x).local_value()
        with torch.no_grad():
            pipe[2].weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.square().sum().backward(create_graph=create_graph)


class Double(nn.Module):
    def forward(self, weight):
        return weight.tanh() * 2


def parametrized() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    for layer in (model[0], model[2]):
        parametrize.register_parametrization(layer, "weight", Double())
    return model


@both
@ways
def test_cached_parametrizations(mode, way):
    plain, model = piped(mode, way, parametrized)
    for step in range(3):
        for each in (plain, model):
            each.zero_grad()
            with parametrize.cached():
                output = each(X)
                if step == 1:  # a second use in one context, and the backward inside of it
                    output = output + each(X + 1)
                    output.square().sum().backward()
            if step != 1:
                output.square().sum().backward()
        assert_same(gradients(model), gradients(plain), atol=1e-4)


@both
def test_a_recomputation_with_cached_parametrizations_is_refused(mode):
    plain, model = piped(mode, "inline", parametrized)
    output = model(X).square().sum()
    with parametrize.cached():
        if mode == "never":
            output.backward()
        else:
            with pytest.raises(RuntimeError, match=r"parametrize\.cached"):
                output.backward()


@both
@ways
def test_a_sparse_embedding_tied_to_a_linear(mode, way):
    def make():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Embedding(7, 5, sparse=True), nn.Tanh(), nn.Linear(5, 7, bias=False)
        )
        model[2].weight = model[0].weight
        return model

    plain, model = piped(mode, way, make)
    tokens = torch.arange(12).view(6, 2) % 7
    for _ in range(2):
        plain(tokens).square().sum().backward()
        model(tokens).square().sum().backward()
        assert_same(gradients(model)[0].to_dense(), gradients(plain)[0].to_dense())


@both
@ways
def test_lazy_modules(mode, way):
    pipe = make_pipe(
        nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(3)), way, chunks=3, checkpoint=mode
    )
    for step in range(3):
        output = pipe(X).local_value()
        if step == 0:
            plain = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
            plain.load_state_dict(pipe.plain_state_dict())
        expected = plain(X)
        assert_same(output, expected)
        output.square().sum().backward()
        expected.square().sum().backward()
        assert_same(gradients(pipe), gradients(plain))


@both
@ways
def test_outputs_without_a_gradient(mode, way):
    """A floating output that has no graph arrives without one, in a recomputation as well."""
    seen = []

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            return y, y.detach().sign()

    class Second(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, y, mask):
            seen.append(mask.requires_grad)
            return self.linear(y) * mask, mask

    pipe = make_pipe(nn.Sequential(First(), Second()), way, chunks=3, checkpoint=mode)
    for step in range(4):
        output, mask = pipe(X).local_value()
        output.sum().backward()
        if step < 2:
            seen.clear()  # each mini-batch finds it out for one stage more
            continue
        assert not mask.requires_grad
    assert not any(seen)


def test_an_output_that_gets_a_graph_later():
    """What a stage was seen to do decides nothing silently."""

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.cut = True

        def forward(self, *x):
            y = self.linear(x[0])
            z = y * 2
            return y, z.detach() if self.cut else z

    class Last(nn.Module):
        def forward(self, y, z):
            return y + z

    pipe = make_pipe(nn.Sequential(Stage(), Last()), chunks=2, checkpoint="always")
    for _ in range(2):
        pipe(X).local_value().sum().backward()
    cut = pipe[0].linear.weight.grad.clone() / 2
    pipe[0].cut = False
    pipe.zero_grad()
    with pytest.raises(RuntimeError, match="had not done before"):
        pipe(X).local_value().sum().backward()
    pipe.zero_grad()
    pipe(X).local_value().sum().backward()
    assert_same(pipe[0].linear.weight.grad, 3 * cut)


@both
def test_a_tensor_nobody_knows_of_that_is_used_later(mode):
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.hidden = None

        def forward(self, x):
            y = self.linear(x)
            return y if self.hidden is None else y * self.hidden[0]

    pipe = make_pipe(nn.Sequential(Hidden()), chunks=2, checkpoint=mode)
    pipe(X).local_value().sum().backward()
    pipe[0].hidden = [torch.ones(4, requires_grad=True)]
    with pytest.raises(RuntimeError, match="registered parameters"):
        pipe(X).local_value().sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_around(backend):
    plain, model = piped("except_last", "inline")
    compiled = torch.compile(model, backend=backend)
    for _ in range(3):
        plain.zero_grad(), model.zero_grad()
        plain(X).square().sum().backward()
        compiled(X).square().sum().backward()
        assert_same(gradients(model), gradients(plain))


@both
@ways
def test_a_function_mode_is_there_in_the_recomputation(mode, way):
    class Halve(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result / 2 if function is torch.tanh else result

    class Tanh(nn.Module):
        def forward(self, x):
            return torch.tanh(x)

    plain, model = piped(mode, way, lambda: nn.Sequential(nn.Linear(4, 4), Tanh()))
    for each in (plain, model):
        with Halve():
            output = each(X)
        output.square().sum().backward()
    assert_same(gradients(model), gradients(plain))


@both
def test_two_threads_take_turns_in_a_stage(mode):
    """Also where each runs its mini-batch by itself."""
    busy = []

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x):
            busy.append(1)
            assert len(busy) == 1
            for _ in range(20):
                x = self.linear(x).tanh()
            busy.pop()
            return x

    pipe = make_pipe(nn.Sequential(Stage()), "inline", chunks=4, checkpoint=mode)

    def work():
        for _ in range(10):
            pipe(torch.ones(64, 64)).local_value().sum().backward()

    in_threads(work, work, work)
