"""Parameters of 64 KiB and more: their gradients are added up as they come, in the accumulators where
nobody would see it."""

from __future__ import annotations

import warnings

import pytest
import torch
from pipe_models import MODES, WAYS, PipeAsLayer, assert_same, gradients, make_pipe, plain_copy
from threads import in_threads
from torch import nn

from weft import _C

pytestmark = pytest.mark.usefixtures("alone")

WIDE = 128  # a weight of 64 KiB


def wide() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE))


def step(model, x):
    output = model(x)
    output = output if isinstance(output, torch.Tensor) else output.local_value()
    output.square().sum().backward()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_add_up_over_mini_batches(mode, way):
    """From nothing, then to what is there, then to what somebody put there."""
    plain = wide()
    pipe = make_pipe(plain_copy(plain), way, chunks=3, checkpoint=mode)
    x = torch.randn(7, WIDE)
    for round_ in range(3):
        step(pipe, x)
        step(plain, x)
        assert_same(gradients(pipe), gradients(plain), atol=1e-4, rtol=1e-4)
        if round_ == 1:
            for parameter in (*pipe.parameters(), *plain.parameters()):
                parameter.grad = torch.ones_like(parameter)


def additions(pipe, x) -> dict[str, int]:
    """How often tensors of a weight's shape were added, by operator, in one step."""
    with torch.profiler.profile(record_shapes=True) as profile:
        step(pipe, x)
    found = {"aten::add": 0, "aten::add_": 0}
    for event in profile.events():
        if event.name in found and event.input_shapes[:2] == [[WIDE, WIDE]] * 2:
            found[event.name] += 1
    return found


@pytest.mark.parametrize("watched", [False, True], ids=["accumulator", "sum"])
@pytest.mark.parametrize("way", WAYS)
def test_no_addition_makes_a_new_tensor(way, watched):
    """A weight's gradient is a view, of what nobody else has; no sum of them takes memory of its own."""
    pipe = make_pipe(wide(), way, chunks=4, checkpoint="never")
    if watched:
        for layer in (pipe[0], pipe[2]):
            layer.weight.register_hook(lambda grad: None)
    x = torch.randn(8, WIDE)
    assert additions(pipe, x) == {"aten::add": 0, "aten::add_": 2 * 3}
    kept = [pipe[k].weight.grad.data_ptr() for k in (0, 2)]
    assert additions(pipe, x) == {"aten::add": 0, "aten::add_": 2 * 4}
    assert [pipe[k].weight.grad.data_ptr() for k in (0, 2)] == kept


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["tensor", "accumulated", "node"])
def test_who_watches_sees_the_whole_gradient_once(mode, kind):
    plain = wide()
    pipe = make_pipe(plain_copy(plain), "threads", chunks=4, checkpoint=mode)
    weight = pipe[2].weight
    seen = []
    if kind == "tensor":
        weight.register_hook(lambda grad: seen.append(grad.clone()))
    elif kind == "accumulated":
        weight.register_post_accumulate_grad_hook(lambda w: seen.append(w.grad.clone()))
    else:  # as DDP does it
        accumulator = weight.expand_as(weight).grad_fn.next_functions[0][0]
        accumulator.register_hook(lambda *_: seen.append(weight.grad.clone()))
    x = torch.randn(8, WIDE)
    step(pipe, x)
    step(plain, x)
    assert len(seen) == 1
    assert_same(seen[0], plain[2].weight.grad, atol=1e-4, rtol=1e-4)
    assert_same(gradients(pipe), gradients(plain), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_asked_for_is_not_accumulated(mode):
    plain = wide()
    pipe = make_pipe(plain_copy(plain), "threads", chunks=3, checkpoint=mode)
    x = torch.randn(6, WIDE)
    (found,) = torch.autograd.grad(pipe(x).local_value().sum(), [pipe[0].weight])
    (expected,) = torch.autograd.grad(plain(x).sum(), [plain[0].weight])
    assert_same(found, expected, atol=1e-4, rtol=1e-4)
    assert all(parameter.grad is None for parameter in pipe.parameters())
    pipe(x).local_value().sum().backward(inputs=[pipe[0].weight])
    assert_same(pipe[0].weight.grad, expected, atol=1e-4, rtol=1e-4)
    assert [p.grad is None for p in pipe.parameters()] == [False, True, True, True]


def test_a_weight_of_two_stages_and_of_the_loss():
    def tied():
        model = wide()
        model[2].weight = model[0].weight
        return model

    plain = tied()
    pipe = make_pipe(tied(), "threads", chunks=4)
    x = torch.randn(8, WIDE)
    for _ in range(2):
        (pipe(x).local_value().sum() + pipe[0].weight.square().sum()).backward()
        (plain(x).sum() + plain[0].weight.square().sum()).backward()
    assert_same(gradients(pipe), gradients(plain), atol=1e-4, rtol=1e-4)


def test_the_same_every_time():
    """Threads do not change the order of additions."""
    found = []
    for way in ("inline", "threads", "threads"):
        pipe = make_pipe(wide(), way, chunks=5, checkpoint="except_last")
        torch.manual_seed(1)
        x = torch.randn(20, WIDE)
        step(pipe, x)
        step(pipe, x)
        found.append(gradients(pipe))
    assert_same(found[1], found[0], atol=0, rtol=0)
    assert_same(found[2], found[0], atol=0, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_sparse(mode):
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(1024, 32, sparse=True), nn.Linear(32, 4))

    plain = model()
    pipe = make_pipe(model(), "threads", chunks=3, checkpoint=mode)
    numbers = torch.randint(1024, (9, 5))
    for _ in range(2):
        step(pipe, numbers)
        step(plain, numbers)
    assert pipe[0].weight.grad.is_sparse
    assert_same(pipe[0].weight.grad.to_dense(), plain[0].weight.grad.to_dense())


@pytest.mark.parametrize("way", WAYS)
def test_a_pipe_in_a_stage(way):
    plain = wide()
    inner = make_pipe(plain_copy(plain), way, chunks=2)
    pipe = make_pipe(nn.Sequential(PipeAsLayer(inner), nn.Tanh()), way, chunks=2)
    x = torch.randn(8, WIDE)
    for _ in range(2):
        step(pipe, x)
        plain(x).tanh().square().sum().backward()
    assert_same(gradients(inner), gradients(plain), atol=1e-4, rtol=1e-4)


def test_two_threads_add_to_the_same():
    shared = wide()
    plain = plain_copy(shared)
    x = torch.randn(8, WIDE)
    pipes = [make_pipe(shared, "threads", chunks=2) for _ in range(2)]
    in_threads(*(lambda pipe=pipe: [step(pipe, x) for _ in range(10)] for pipe in pipes))
    (20 * plain(x).square().sum()).backward()
    assert_same(gradients(shared), gradients(plain), atol=1e-2, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_after_a_backward_that_failed(mode):
    class Odd(Exception):
        pass

    class Fragile(torch.autograd.Function):
        wrong = True

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            if Fragile.wrong:
                raise Odd
            return grad

    class Stage(nn.Module):
        def forward(self, x):
            return Fragile.apply(x)

    plain = wide()
    first, *others = plain_copy(plain)
    pipe = make_pipe(nn.Sequential(first, Stage(), *others), "threads", chunks=2, checkpoint=mode)
    x = torch.randn(8, WIDE)
    with pytest.raises(Odd):
        step(pipe, x)
    assert pipe[0].weight.grad is None
    assert pipe[3].weight.grad is not None  # a part of it, as docs/guide/pipe.md says
    Fragile.wrong = False
    pipe.zero_grad()
    # The next Python code on the stages' threads is a backward: nothing of the error may be left.
    pipe._engine.set_threading(_C.pipe.Threading.inline)
    loss = pipe(x).local_value().square().sum()
    pipe._engine.set_threading(_C.pipe.Threading.threads)
    loss.backward()
    step(plain, x)
    assert_same(gradients(pipe), gradients(plain), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_anomalies_are_found_and_graphs_kept(mode):
    plain = wide()
    pipe = make_pipe(plain_copy(plain), "threads", chunks=2, checkpoint=mode)
    x = torch.randn(8, WIDE)
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        loss, expected = pipe(x).local_value().sum(), plain(x).sum()
        for one in (loss, expected):
            one.backward(retain_graph=True)
            one.backward()
    assert_same(gradients(pipe), gradients(plain), atol=1e-4, rtol=1e-4)
