"""How much autograd keeps alive in each checkpoint mode: stage graphs counted, activations weighed."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import weft

pytestmark = pytest.mark.usefixtures("alone")

STAGES, CHUNKS = 3, 4


class Live:
    """Counts marks that are alive, and the most there were."""

    def __init__(self):
        self.now = self.most = 0

    def mark(self):
        token = type("Token", (), {})()
        self.now += 1
        self.most = max(self.most, self.now)
        weakref.finalize(token, self._gone)
        return token

    def _gone(self):
        self.now -= 1


class Hold(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, token):
        ctx.token = token
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class Stage(nn.Module):
    """Marks every run of which autograd keeps a graph."""

    def __init__(self, live):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.live = live

    def forward(self, x):
        y = self.layer(x)
        return Hold.apply(y, self.live.mark()) if torch.is_grad_enabled() else y


def piped(mode, live, chunks=CHUNKS, stages=STAGES):
    return weft.Pipe(nn.Sequential(*(Stage(live) for _ in range(stages))), chunks, mode)


@pytest.mark.parametrize(
    "mode, after", [("never", STAGES * CHUNKS), ("except_last", STAGES), ("always", 0)]
)
def test_stage_graphs_alive_after_forward_and_none_after_backward(mode, after):
    live = Live()
    pipe = piped(mode, live)
    out = pipe(torch.ones(8, 4)).local_value()
    gc.collect()
    assert live.now == after
    out.sum().backward()
    del out
    gc.collect()
    assert live.now == 0


@pytest.mark.parametrize("mode, most", [("except_last", 2 * STAGES), ("always", 2 * STAGES)])
def test_backward_rebuilds_few_graphs_at_a_time(mode, most):
    live = Live()
    piped(mode, live, chunks=16)(torch.ones(16, 4)).local_value().sum().backward()
    assert live.most <= most


def test_always_with_one_partition_peaks_at_one_micro_batch():
    live = Live()
    piped("always", live, stages=1)(torch.ones(8, 4)).local_value().sum().backward()
    assert live.most == 1


@pytest.mark.parametrize("mode", ["never", "except_last", "always"])
def test_an_output_that_is_dropped_frees_everything(mode):
    live = Live()
    pipe = piped(mode, live)
    pipe(torch.ones(8, 4))
    gc.collect()
    assert live.now == 0


def test_retain_graph_keeps_and_then_frees():
    live = Live()
    pipe = piped("except_last", live)
    out = pipe(torch.ones(8, 4)).local_value().sum()
    out.backward(retain_graph=True)
    out.backward()
    del out
    gc.collect()
    assert live.now == 0


def saved_bytes(mode):
    """Bytes that saved-tensor hooks see alive when forward has ended."""
    alive = Live()
    sizes = {}

    class Packed:
        def __init__(self, tensor):
            self.tensor = tensor
            key = id(self)
            sizes[key] = tensor.numel() * tensor.element_size()
            weakref.finalize(self, sizes.pop, key)

    torch.manual_seed(0)
    pipe = weft.Pipe(
        nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(2))), 4, mode
    )
    with torch.autograd.graph.saved_tensors_hooks(Packed, lambda packed: packed.tensor):
        out = pipe(torch.ones(64, 64)).local_value()
    gc.collect()
    total = sum(sizes.values())
    out.sum().backward()
    assert pipe[0][0].weight.grad is not None if isinstance(pipe[0], nn.Sequential) else True
    assert alive.now == 0
    return total


def test_bytes_saved_by_mode():
    never, last, always = (saved_bytes(mode) for mode in ("never", "except_last", "always"))
    assert never > last > always
    # Four micro-batches of which all, one, or none are kept; the rest is what stages start again from.
    assert last <= never * 0.6
