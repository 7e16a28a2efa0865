"""Models as people write them, piped in every mode beside the plain Sequential: outputs, gradients,
and what else a run does to a model."""

from __future__ import annotations

import collections
import copy
import io
import pickle
import threading
import warnings

import pytest
import torch
from pipe_models import F
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import weft

pytestmark = pytest.mark.usefixtures("alone")

MODES = ("never", "except_last", "always")
EVERY_MODE = pytest.mark.parametrize("mode", MODES)
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def model(*functions):
    return nn.Sequential(*(F(function) for function in functions))


def leaves(value):
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def loss_of(value):
    floats = [x for x in leaves(value) if x.is_floating_point() and x.requires_grad]
    return sum((x * torch.linspace(1, 2, x.numel()).view_as(x)).sum() for x in floats)


def check(make, *inputs, mode, chunks=3):
    """Runs both; compares outputs, gradients of parameters and of inputs."""
    plain = make()
    piped = weft.Pipe(copy.deepcopy(plain), chunks=chunks, checkpoint=mode)

    def fresh():
        return [
            x.clone().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x
            for x in inputs
        ]

    mine, theirs = fresh(), fresh()
    got = piped(*mine).local_value()
    wanted = chained(plain, *theirs)
    for a, b in zip(leaves(got), leaves(wanted), strict=True):
        torch.testing.assert_close(a, b, **CLOSE)
    loss_of(got).backward()
    loss_of(wanted).backward()
    for (name, a), b in zip(piped.named_parameters(), plain.parameters(), strict=True):
        if b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, **CLOSE, msg=lambda m: f"{name}: {m}")  # noqa: B023
    for a, b in zip(mine, theirs, strict=True):
        if isinstance(a, torch.Tensor) and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, **CLOSE)
    return got


def chained(module, *args):
    """A Sequential whose layers may take and give several values, as stages do."""
    for layer in module:
        result = layer(*args)
        args = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    return result


X = torch.linspace(-1, 2, 21).view(7, 3)


@EVERY_MODE
def test_tuples_lists_and_dictionaries(mode):
    check(lambda: model(lambda w, x: (x * w, x + w), lambda w, a, b: [a * w, b]), X, mode=mode)
    out = check(
        lambda: model(
            lambda w, x: {"a": x * w, "b": [x, 3]}, lambda w, d: {"c": d["a"] * d["b"][0]}
        ),
        X,
        mode=mode,
    )
    assert set(out) == {"c"}


@EVERY_MODE
def test_none_and_numbers_between_stages(mode):
    piped = weft.Pipe(
        model(lambda w, x: (x * w, None, 3), lambda w, x, n, k: (x * w * k, n)),
        chunks=3,
        checkpoint=mode,
    )
    out = piped(X).local_value()
    torch.testing.assert_close(out[0], X * 1.5 * 1.5 * 3)
    assert list(out[1]) == [None] * 3
    out[0].sum().backward()
    assert all(p.grad is not None for p in piped.parameters())


@EVERY_MODE
def test_integers_and_booleans_first(mode):
    check(
        lambda: model(lambda w, x: ((x > 0), x.long(), x * w), lambda w, m, i, x: (i, x * w * m)),
        X,
        mode=mode,
    )


@EVERY_MODE
def test_tokens_in(mode):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.Tanh())

    check(make, torch.arange(8).view(4, 2), mode=mode)


@EVERY_MODE
def test_a_branch_without_gradient_and_one_unused(mode):
    check(
        lambda: model(lambda w, x: (x.detach() * 2, x * w), lambda w, a, b: (a, b * w)),
        X,
        mode=mode,
    )
    check(lambda: model(lambda w, x: (x * w, x * w * 2), lambda w, a, b: a * w), X, mode=mode)


@EVERY_MODE
def test_views_and_outputs_that_are_inputs(mode):
    check(lambda: model(lambda w, x: x.t().t(), lambda w, x: x, lambda w, x: x * w), X, mode=mode)
    check(lambda: model(lambda w, x: (x, x), lambda w, a, b: a * w + b), X, mode=mode)


@EVERY_MODE
def test_in_place_on_what_came_in_is_right_or_an_error(mode):
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3))

    try:
        check(make, X, mode=mode)
    except RuntimeError as error:
        assert "in-place" in str(error) or "inplace" in str(error)


@EVERY_MODE
def test_in_place_between_partitions_without_a_saved_input(mode):
    try:
        check(lambda: model(lambda w, x: x * w, lambda w, x: x.add_(1) * w), X, mode=mode)
    except RuntimeError as error:
        assert "in-place" in str(error) or "inplace" in str(error)


@EVERY_MODE
def test_dropout_is_the_same_in_recomputation(mode):
    torch.manual_seed(0)
    piped = weft.Pipe(
        nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Identity()), chunks=3, checkpoint=mode
    )
    x = X.clone().requires_grad_()
    out = piped(x).local_value()
    state = torch.get_rng_state()
    out.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    weight = piped[0].weight
    mask = (out != 0).float() * 2
    torch.testing.assert_close(x.grad, mask @ weight, **CLOSE)


@EVERY_MODE
def test_forward_and_backward_hooks_run(mode):
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    calls = collections.Counter()
    layers[0].register_forward_hook(lambda *_: calls.update(["forward"]))
    layers[0].register_forward_pre_hook(lambda *_: calls.update(["before"]))
    layers[1].register_full_backward_hook(lambda *_: calls.update(["backward"]))
    layers[1].weight.register_hook(lambda g: calls.update(["gradient"]))
    layers[1].weight.register_post_accumulate_grad_hook(lambda p: calls.update(["accumulated"]))
    piped = weft.Pipe(layers, chunks=3, checkpoint=mode)
    piped(X.clone().requires_grad_()).local_value().sum().backward()
    runs = {"never": 3, "except_last": 5, "always": 6}[mode]
    assert calls["forward"] == calls["before"] == runs
    assert calls["backward"] == 3
    assert calls["gradient"] == calls["accumulated"] == 1


@EVERY_MODE
def test_autocast_reaches_the_stages(mode):
    seen = []

    def note(w, x):
        y = functional.linear(x, torch.ones(3, 3) * w)
        seen.append((torch.is_autocast_enabled("cpu"), y.dtype))
        return y

    piped = weft.Pipe(model(note, note), chunks=3, checkpoint=mode)
    with torch.autocast("cpu", torch.bfloat16):
        out = piped(X).local_value()
    out.float().sum().backward()
    assert set(seen) == {(True, torch.bfloat16)}
    assert all(p.grad is not None for p in piped.parameters())


@EVERY_MODE
def test_no_grad_and_inference_mode(mode):
    seen = []

    def note(w, x):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return x * w

    piped = weft.Pipe(model(note, note), chunks=2, checkpoint=mode)
    with torch.no_grad():
        assert not piped(X).local_value().requires_grad
    with torch.inference_mode():
        assert piped(X).local_value().is_inference()
    assert set(seen[:4]) == {(False, False)} and set(seen[4:]) == {(False, True)}
    assert len(seen) == 8


@EVERY_MODE
def test_eval_runs_once_and_still_has_gradients(mode):
    count = collections.Counter()

    def note(w, x):
        count.update([torch.is_grad_enabled()])
        return x * w

    piped = weft.Pipe(model(note, note), chunks=3, checkpoint=mode).eval()
    piped(X).local_value().sum().backward()
    assert count == {True: 6}


@EVERY_MODE
def test_torch_checkpoint_inside_a_stage(mode):
    class Inner(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
            self.reentrant = reentrant

        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=self.reentrant)

    def make(reentrant):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3), Inner(reentrant), Inner(reentrant))

    check(lambda: make(False), X, mode=mode)
    # Torch's old form needs a backward pass of its own kind, and says so.
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        check(lambda: make(True), X, mode=mode)


@EVERY_MODE
def test_script_modules_and_mixed(mode):
    def make():
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
        return nn.Sequential(nn.Linear(3, 3), script, nn.Linear(3, 3))

    torch.manual_seed(0)
    plain, other = make(), make()
    piped = weft.Pipe(other, chunks=3, checkpoint=mode)
    torch.testing.assert_close(piped(X).local_value(), plain(X), **CLOSE)
    plain(X).sum().backward()
    piped(X).local_value().sum().backward()
    for a, b in zip(piped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, **CLOSE)


def test_compiled_stage():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    plain = nn.Sequential(nn.Linear(3, 3), copy.deepcopy(layer))
    compiled = nn.Sequential(
        copy.deepcopy(plain[0]), torch.compile(copy.deepcopy(layer), backend="aot_eager")
    )
    for mode in MODES:
        piped = weft.Pipe(compiled, chunks=3, checkpoint=mode)
        out = piped(X).local_value()
        torch.testing.assert_close(out, plain(X), **CLOSE)
        piped.zero_grad(), plain.zero_grad()
        out.sum().backward()
        plain(X).sum().backward()
        for a, b in zip(piped.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, **CLOSE)


@EVERY_MODE
def test_compiled_stages_compile_one_at_a_time(mode):
    # torch 2.11 refuses a compiled layer on one thread while another thread compiles; the last
    # micro-batch is smaller, which compiles again.
    def layer():
        return torch.compile(nn.Sequential(nn.Linear(3, 3), nn.Tanh()), backend="aot_eager")

    torch.manual_seed(0)
    plain = nn.Sequential(layer(), layer(), layer())
    piped = weft.Pipe(copy.deepcopy(plain), chunks=3, checkpoint=mode)
    x = torch.rand(7, 3)
    for _ in range(2):
        piped.zero_grad(), plain.zero_grad()
        out = piped(x).local_value()
        torch.testing.assert_close(out, plain(x), **CLOSE)
        out.sum().backward()
        plain(x).sum().backward()
        for a, b in zip(piped.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, **CLOSE)


class Compiled(nn.Module):
    """Long enough for a thread of its own."""

    def __init__(self, backend="eager") -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.Tanh())
        self.compile(backend=backend)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.layers(self.layers(x)))


def test_a_batch_of_another_size_is_compiled_on_the_calling_thread():
    piped = weft.Pipe(nn.Sequential(*(Compiled() for _ in range(4))), chunks=4, checkpoint="always")
    for rows in (64, 64, 60, 64):  # the last batch of an epoch, and the next one
        piped(torch.rand(rows, 256)).local_value().sum().backward()


@torch._dynamo.config.patch(recompile_limit=100)
def test_what_else_is_compiled_again_is_so_on_the_calling_thread():
    torch._dynamo.reset()  # other tests may have compiled so often that it gives up
    compiled_on = []

    def backend(graph, _inputs):
        compiled_on.append(threading.get_ident())
        return graph

    stages = [Compiled(backend) for _ in range(4)]
    piped = weft.Pipe(nn.Sequential(*stages), chunks=4, checkpoint="always")

    def compiles(x: torch.Tensor) -> bool:
        compiled_on.clear()
        for _ in range(2):
            piped(x).local_value().sum().backward()
        assert set(compiled_on) <= {threading.get_ident()}
        return bool(compiled_on)

    x = torch.rand(64, 256, requires_grad=True)
    assert compiles(x) and not compiles(x)
    assert compiles(torch.rand(256, 64).t().requires_grad_())
    for layer in piped:
        layer.layers[0].requires_grad_(False)
    compiles(x)  # or not: torch does not always look
    piped.eval()
    compiles(x)
    with torch.autocast("cpu", torch.bfloat16):
        assert compiles(x)
    with torch.autocast("cpu", torch.float16):
        assert compiles(x)


@EVERY_MODE
def test_copies_and_pickles(mode):
    torch.manual_seed(0)
    piped = weft.Pipe(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), chunks=3, checkpoint=mode)
    wanted = piped(X).local_value()
    buffer = io.BytesIO()
    torch.save(piped, buffer)
    buffer.seek(0)
    twins = [
        copy.deepcopy(piped),
        pickle.loads(pickle.dumps(piped)),
        torch.load(buffer, weights_only=False),
    ]
    for twin in twins:
        assert (twin.chunks, twin.checkpoint) == (3, mode)
        out = twin(X).local_value()
        torch.testing.assert_close(out, wanted)
        out.sum().backward()
        assert twin[0].weight.grad is not None and piped[0].weight.grad is None


@EVERY_MODE
def test_grad_of_parameters_and_twice(mode):
    plain = model(lambda w, x: x * w, lambda w, x: x * w)
    piped = weft.Pipe(copy.deepcopy(plain), chunks=3, checkpoint=mode)
    loss = piped(X).local_value().sum()
    first = torch.autograd.grad(loss, list(piped.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(piped.parameters()))
    wanted = torch.autograd.grad(plain(X).sum(), list(plain.parameters()))
    for one, two, three in zip(first, second, wanted, strict=True):
        torch.testing.assert_close(one, three, **CLOSE)
        torch.testing.assert_close(two, three, **CLOSE)
    assert all(p.grad is None for p in piped.parameters())


def test_double_backward_in_mode_never():
    plain = model(lambda w, x: x.tanh() * w, lambda w, x: x.tanh() * w)
    piped = weft.Pipe(copy.deepcopy(plain), chunks=3, checkpoint="never")
    results = []
    for run in (lambda x: piped(x).local_value(), plain):
        x = X.clone().requires_grad_()
        (grad,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), x)[0])
    torch.testing.assert_close(*results, **CLOSE)


@EVERY_MODE
def test_small_batches_and_changing_sizes(mode):
    for rows in (1, 2, 7, 5):
        check(lambda: model(lambda w, x: x * w, lambda w, x: x * w), X[:rows], mode=mode, chunks=4)


@EVERY_MODE
def test_shared_and_frozen_parameters(mode):
    def make():
        torch.manual_seed(0)
        first, second, third = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        second.weight = first.weight
        third.requires_grad_(False)
        return nn.Sequential(first, third, second)

    check(make, X, mode=mode)


@EVERY_MODE
def test_buffers_are_updated(mode):
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            if not weft.pipe.is_recomputing():
                self.seen += len(x)
            return x * 2

    piped = weft.Pipe(nn.Sequential(Count(), Count()), chunks=3, checkpoint=mode)
    piped(X.clone().requires_grad_()).local_value().sum().backward()
    assert [layer.seen.item() for layer in piped] == [7, 7]


@EVERY_MODE
def test_named_tuples_and_none_alone(mode):
    Pair = collections.namedtuple("Pair", "left right")
    piped = weft.Pipe(
        model(lambda w, x: Pair(x * w, 2), lambda w, a, b: a * b * w), chunks=3, checkpoint=mode
    )
    torch.testing.assert_close(piped(X).local_value(), X * 2 * 2.25)


@EVERY_MODE
def test_anomaly_mode_and_a_nan(mode):
    piped = weft.Pipe(
        model(lambda w, x: (x * 0 * w).sqrt() * w, lambda w, x: x * w), chunks=2, checkpoint=mode
    )
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="nan"):
            piped(X).local_value().sum().backward()
    weft.Pipe(model(lambda w, x: x * w), chunks=2, checkpoint=mode)(X).local_value()


@EVERY_MODE
def test_an_error_surfaces_and_the_pipe_goes_on(mode):
    class Odd(Exception):
        pass

    wrong = [True]

    def fail(w, x):
        if wrong[0]:
            raise Odd("here")
        return x * w

    piped = weft.Pipe(model(lambda w, x: x * w, fail), chunks=3, checkpoint=mode)
    with pytest.raises(Odd, match="here") as caught:
        piped(X)
    assert "fail" in [frame.name for frame in caught.traceback]
    wrong[0] = False
    torch.testing.assert_close(piped(X).local_value(), X * 2.25)
