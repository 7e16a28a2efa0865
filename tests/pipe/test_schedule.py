"""How often stages run, what is kept, in which order random numbers are drawn."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from pipe_models import MODES, WAYS, Counter, assert_same, gradients, make_pipe, mlp
from torch import nn

from weft.pipe import is_checkpointing, is_recomputing

pytestmark = pytest.mark.usefixtures("alone")

RUNS = {"never": lambda m: m, "except_last": lambda m: 2 * m - 1, "always": lambda m: 2 * m}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("m", [1, 2, 5])
def test_forward_counts(mode, way, m):
    pipe = make_pipe(nn.Sequential(Counter(), Counter(), Counter()), way, chunks=m, checkpoint=mode)
    x = torch.randn(10, 4)
    output = pipe(x).local_value()
    assert [stage.forwards for stage in pipe] == [m] * 3
    output.sum().backward()
    assert [stage.forwards for stage in pipe] == [RUNS[mode](m)] * 3


@pytest.mark.parametrize("mode", MODES)
def test_no_checkpoints_out_of_training(mode):
    pipe = make_pipe(nn.Sequential(Counter(), Counter()), chunks=3, checkpoint=mode).eval()
    pipe(torch.randn(6, 4)).local_value().sum().backward()
    assert [stage.forwards for stage in pipe] == [3, 3]


def test_a_stage_that_needs_no_gradient_is_not_run_again():
    pipe = make_pipe(nn.Sequential(Counter(), Counter()), chunks=3, checkpoint="always")
    pipe[0].requires_grad_(False)
    pipe(torch.randn(6, 4)).local_value().sum().backward()
    assert [stage.forwards for stage in pipe] == [3, 6]


@pytest.mark.parametrize("mode", MODES)
def test_live_graphs(mode):
    """After the forward n*m, n or no stage runs keep a graph; after the backward none does."""
    alive = weakref.WeakSet()

    class Mark(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = Mark.apply(self.linear(x))
            if y.grad_fn is not None:
                alive.add(y.grad_fn)
            return y

    n, m = 3, 4
    pipe = make_pipe(nn.Sequential(*(Marked() for _ in range(n))), chunks=m, checkpoint=mode)
    output = pipe(torch.randn(8, 4)).local_value()
    gc.collect()
    assert len(alive) == {"never": n * m, "except_last": n, "always": 0}[mode]
    output.sum().backward()
    gc.collect()
    assert len(alive) == 0


def test_flags():
    seen = []

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            seen.append((is_checkpointing(), is_recomputing(), torch.is_grad_enabled()))
            return self.linear(x)

    pipe = make_pipe(nn.Sequential(Stage()), chunks=2, checkpoint="except_last")
    pipe(torch.randn(4, 4)).local_value().sum().backward()
    assert seen == [(True, False, False), (False, False, True), (False, True, True)]
    assert not is_checkpointing()
    assert not is_recomputing()


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.masks: dict[bool, list[torch.Tensor]] = {False: [], True: []}

    def forward(self, x):
        mask = torch.rand_like(x)
        self.masks[is_recomputing()].append(mask)
        return x * mask * self.weight


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_random_numbers(mode, way):
    """Drawn in the clock's order, repeated when recomputed; the global generator sees no recomputation."""
    n, m = 3, 4
    pipe = make_pipe(nn.Sequential(*(Noisy() for _ in range(n))), way, chunks=m, checkpoint=mode)
    for _ in range(3):  # the second and third know which stages draw
        for stage in pipe:
            stage.masks = {False: [], True: []}
        torch.manual_seed(7)
        x = torch.ones(8, 2)
        output = pipe(x).local_value()
        after = torch.get_rng_state()
        output.sum().backward()
        assert torch.equal(torch.get_rng_state(), after)

        torch.manual_seed(7)
        for clock in range(n + m - 1):
            for j in range(n):
                if 0 <= clock - j < m:
                    expected = torch.rand(2, 2)
                    assert torch.equal(pipe[j].masks[False][clock - j], expected)
        for stage in pipe:
            again = stage.masks[True][::-1]
            assert len(again) == {"never": 0, "except_last": m - 1, "always": m}[mode]
            for first, second in zip(stage.masks[False], again, strict=False):
                assert torch.equal(first, second)


@pytest.mark.parametrize("way", WAYS)
def test_dropout_gradients_do_not_depend_on_the_mode(way):
    found = []
    for mode in MODES:
        torch.manual_seed(3)
        model = nn.Sequential(
            nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Dropout(0.3), nn.Linear(16, 2)
        )
        pipe = make_pipe(model, way, chunks=4, checkpoint=mode)
        torch.manual_seed(4)
        output = pipe(torch.ones(8, 4)).local_value()
        output.square().sum().backward()
        found.append((output.detach(), gradients(pipe)))
    assert_same(found[0], found[1], atol=0, rtol=0)
    assert_same(found[0], found[2], atol=0, rtol=0)


def test_uneven_and_small_mini_batches():
    pipe = make_pipe(mlp(), chunks=4)
    sizes = []
    pipe[0].register_forward_hook(lambda _m, inputs, _o: sizes.append(len(inputs[0])))
    with torch.no_grad():
        pipe(torch.randn(9, 4))
        assert sizes == [len(piece) for piece in torch.empty(9).chunk(4)]
        sizes.clear()
        pipe(torch.randn(2, 4))
    assert sizes == [1, 1]
