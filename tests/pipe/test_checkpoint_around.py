"""What surrounds a Pipe and keeps or repeats what it saves: torch.utils.checkpoint, hooks on saved
tensors, autocast and its end before a double backward."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from pipe_models import MODES, WAYS, F, PipeAsLayer, assert_same, gradients, make_pipe, piped
from torch import nn
from torch.utils.checkpoint import checkpoint
from worker_models import FailsInACheckpoint

from weft.pipe._partition import PipeSequential

pytestmark = pytest.mark.usefixtures("alone")
both = pytest.mark.parametrize("mode", MODES)
ways = pytest.mark.parametrize("way", WAYS)

X = torch.linspace(-1, 1, 24).reshape(6, 4)


@both
@ways
def test_a_checkpoint_around(mode, way):
    """Not reentrant: its hooks count the saved tensors in the order in which they are saved."""
    plain, model = piped(mode, way)
    for _ in range(4):
        for each in (plain, model):
            each.zero_grad()
            checkpoint(each, X, use_reentrant=False).square().sum().backward()
        assert_same(gradients(model), gradients(plain))


@both
@ways
def test_a_reentrant_checkpoint_around(mode, way):
    plain, model = piped(mode, way)
    for _ in range(3):
        grads = []
        for each in (plain, model):
            each.zero_grad()
            x = X.clone().requires_grad_()
            checkpoint(each, x, use_reentrant=True).square().sum().backward()
            grads.append(x.grad)
        assert_same(*grads)
        assert_same(gradients(model), gradients(plain))


@both
@ways
def test_hooks_on_saved_tensors_are_called_in_order(mode, way):
    """The same tensors in the same order in every step, on the caller's thread."""
    import threading

    _, model = piped(mode, way)
    orders = []
    for _ in range(4):
        seen = []

        def pack(tensor, seen=seen):
            assert threading.current_thread() is threading.main_thread()
            seen.append(tuple(tensor.shape))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model(X)
        output.square().sum().backward()
        orders.append(seen)
    assert orders[1:] == orders[:1] * 3


@both
@ways
def test_save_on_cpu_and_selective_checkpoints(mode, way):
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    plain, model = piped(mode, way)
    plain(X).square().sum().backward()
    with torch.autograd.graph.save_on_cpu():
        output = model(X)
    output.square().sum().backward()
    assert_same(gradients(model), gradients(plain))
    model.zero_grad()

    def policy(ctx, op, *args, **kwargs):
        keep = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    checkpoint(
        model,
        X,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(policy),
    ).square().sum().backward()
    assert_same(gradients(model), gradients(plain))


@both
@ways
def test_double_backward_outside_of_autocast(mode, way):
    """The forward's autocast is that of the second forward, and not of the operations of the backward."""

    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

    found = []
    for model in piped(mode, way, make, chunks=2):
        x = torch.linspace(-1, 1, 256).view(4, 64).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            output = model(x)
        with torch.autocast("cpu", enabled=False):
            (slope,) = torch.autograd.grad(output.float().square().sum(), x, create_graph=True)
            slope.square().sum().backward()
        found.append(x.grad)
    assert_same(found[1], found[0], atol=1e-2, rtol=1e-2)


@ways
def test_double_backward_runs_the_backward_in_full_precision(way):
    class Precise(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            seen.append((torch.is_autocast_enabled("cpu"), (grad @ grad.t()).dtype))
            return grad * w, (grad * x).sum()

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return Precise.apply(x, self.weight)

    seen = []
    pipe = make_pipe(nn.Sequential(Stage(), Stage()), way, chunks=2)
    x = torch.ones(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        output = pipe(x).local_value()
    torch.autograd.grad(output.sum(), x, create_graph=True)
    assert set(seen) == {(False, torch.float32)}


@both
@ways
def test_deferred_statistics_under_a_reentrant_checkpoint(mode, way):
    torch.manual_seed(0)
    pipe = make_pipe(
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        way,
        chunks=3,
        checkpoint=mode,
        deferred_batch_norm=True,
    )
    x = X.clone().requires_grad_()
    checkpoint(PipeAsLayer(pipe), x, use_reentrant=True).sum().backward()
    assert pipe[1].num_batches_tracked == 1


@both
def test_hooks_on_saved_tensors_around_a_double_backward_of_an_input_twice(mode):
    """Hooks give the saved input anew each time; given twice, it is one tensor in all runs."""

    def write(w, a, b):
        a[:, :2].mul_(1.5)
        return a * b * w

    plain = F(write)
    pipe = make_pipe(PipeSequential(copy.deepcopy(plain)), chunks=2, checkpoint=mode)
    for _ in range(2):
        found = []
        for model in (lambda y: pipe(y, y).local_value(), lambda y: plain(y, y)):
            leaf = X.clone().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                output = model(leaf * 1)
                (slope,) = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)
                found.append(torch.autograd.grad(slope.square().sum(), leaf)[0])
        assert_same(*found)


@ways
def test_a_checkpoint_that_raised_leaves_nobody_elses_hooks(way):
    """Torch takes its hooks away when the exception is dropped, from the thread that drops it."""
    pipe = make_pipe(
        nn.Sequential(nn.Linear(4, 4), FailsInACheckpoint()), way, chunks=2, checkpoint="never"
    )
    kept = []
    try:
        pipe(X)
    except ValueError as error:
        kept.append(error)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    called = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: called.append(t) or t, lambda t: t):
        assert kept.pop() is not None
        gc.collect()
        torch.tanh(X.clone().requires_grad_())
    assert called
