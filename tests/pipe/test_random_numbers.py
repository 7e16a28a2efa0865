"""Random numbers in stages: drawn in the schedule's order, and the same again in every recomputation,
whatever threads do and however a stage's habits change."""

from __future__ import annotations

import threading

import pytest
import torch
from pipe_models import MODES, WAYS, assert_same, gradients, make_pipe
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from weft import _C
from weft.pipe import is_recomputing

pytestmark = pytest.mark.usefixtures("alone")

STAGES = 3
CHUNKS = 4
STEPS = 6


def clock(stages: int = STAGES, chunks: int = CHUNKS):
    """The schedule's order: (micro-batch, stage)."""
    for cycle in range(stages + chunks - 1):
        for stage in range(stages):
            if 0 <= cycle - stage < chunks:
                yield cycle - stage, stage


def plain_step(stages: nn.ModuleList, x: torch.Tensor) -> torch.Tensor:
    """What a Pipe has to compute: stage by stage in the schedule's order, nothing run twice."""
    present = list(x.chunk(CHUNKS))
    for i, j in clock():
        present[i] = stages[j](present[i])
    return torch.cat(present)


def compare(make, way: str, mode: str, before=lambda pipe, step: None) -> None:
    """Steps of a Pipe against the plain run from the same seed: outputs, gradients, the generator."""
    torch.manual_seed(0)
    pipe = make_pipe(
        nn.Sequential(*(make() for _ in range(STAGES))), way, chunks=CHUNKS, checkpoint=mode
    )
    for step in range(STEPS):
        before(pipe, step)
        x = torch.randn(CHUNKS * 2, 32)
        found = []
        for run in (lambda x: pipe(x).local_value(), lambda x: plain_step(list(pipe), x)):
            torch.manual_seed(step)
            pipe.zero_grad()
            output = run(x)
            after = torch.get_rng_state()
            output.square().sum().backward()
            assert torch.equal(torch.get_rng_state(), after), "the backward moved the generator"
            found.append((output.detach(), gradients(pipe), after))
        assert_same(found[0][0], found[1][0])
        assert_same(found[0][1], found[1][1], atol=1e-4, rtol=1e-4)
        assert torch.equal(found[0][2], found[1][2]), f"step {step}: other numbers were drawn"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_dropout_in_a_checkpoint_in_a_stage(mode, way):
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def inner(self, x):
            return functional.dropout(self.linear(x), 0.5).tanh()

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False)

    compare(Stage, way, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_dropout_that_begins_later(mode, way):
    """One that is annealed from 0: the first mini-batch that draws is as right as the others."""

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)
            self.p = 0.0

        def forward(self, x):
            y = self.linear(x).tanh()
            return functional.dropout(y, self.p) if self.p else y

    def anneal(pipe, step):
        for stage in pipe:
            stage.p = 0.5 if step in (2, 3, 5) else 0.0

    compare(Stage, way, mode, anneal)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_seed_of_its_own_in_a_stage(mode, way):
    """fork_rng leaves the generator as it was, but while it is forked, nobody else may draw."""

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)
            self.seed = 0

        def forward(self, x):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                mask = torch.rand_like(x)
                for _ in range(20):
                    mask = mask + torch.rand_like(x)
            y = self.linear(x * mask).tanh()
            return functional.dropout(y, 0.3) if self.seed % 2 else y

    def seeds(pipe, step):
        for j, stage in enumerate(pipe):
            stage.seed = j + step

    compare(Stage, way, mode, seeds)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_generator_of_the_models_own(mode, way):
    """Stages that share a torch.Generator take turns with it too."""
    own = torch.Generator()

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, x):
            return self.linear(x * torch.rand(x.shape, generator=own)).tanh()

    def seed(pipe, step):
        own.manual_seed(step)

    torch.manual_seed(0)
    stages = [Stage() for _ in range(STAGES)]
    pipe = make_pipe(nn.Sequential(*stages), way, chunks=CHUNKS, checkpoint=mode)
    for step in range(STEPS):
        x = torch.randn(CHUNKS * 2, 32)
        found = []
        for run in (lambda x: pipe(x).local_value(), lambda x: plain_step(stages, x)):
            own.manual_seed(step)
            pipe.zero_grad()
            output = run(x)
            state = own.get_state()
            output.square().sum().backward()
            found.append((output.detach(), gradients(pipe)))
            assert torch.equal(own.get_state(), state)
        assert_same(found[0], found[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_that_draws(way):
    """Its numbers come in the order of the backward's schedule, every time the same."""

    class Noise(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.rand_like(grad)

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(32, 32)

        def forward(self, x):
            return Noise.apply(self.linear(x))

    torch.manual_seed(0)
    pipe = make_pipe(nn.Sequential(*(Stage() for _ in range(STAGES))), way, chunks=CHUNKS)
    x = torch.randn(CHUNKS * 2, 32)
    found = []
    for running in ("inline", way, way, way):
        pipe._engine.set_threading(getattr(_C.pipe.Threading, running))
        torch.manual_seed(3)
        pipe.zero_grad()
        pipe(x).local_value().sum().backward()
        found.append((gradients(pipe), torch.get_rng_state()))
    for one in found[1:]:
        assert_same(one[0], found[0][0], atol=0, rtol=0)
        assert torch.equal(one[1], found[0][1])


def test_only_the_recomputation_draws():
    """There is nothing to repeat; the generator is as it was, and nobody is disturbed."""

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            return y + 0 * torch.rand_like(y) if is_recomputing() else y

    pipe = make_pipe(nn.Sequential(Stage(), Stage()), "threads", chunks=CHUNKS, checkpoint="always")
    for _ in range(3):
        output = pipe(torch.ones(8, 4)).local_value()
        state = torch.get_rng_state()
        output.sum().backward()
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("way", WAYS)
def test_a_pipe_in_a_pipe_draws_in_order(way):
    from pipe_models import PipeAsLayer

    def stage():
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))

    def build(running):
        torch.manual_seed(0)
        inner = make_pipe(nn.Sequential(stage(), stage()), running, chunks=2, checkpoint="always")
        return make_pipe(nn.Sequential(stage(), PipeAsLayer(inner), stage()), running, chunks=3)

    found = []
    for running in ("inline", way):
        pipe = build(running)
        x = torch.ones(12, 8)
        for step in range(4):
            torch.manual_seed(step)
            pipe.zero_grad()
            output = pipe(x).local_value()
            output.square().sum().backward()
            found.append((output.detach(), gradients(pipe), torch.get_rng_state()))
    for mine, reference in zip(found[4:], found[:4], strict=True):
        assert_same(mine[:2], reference[:2], atol=0, rtol=0)
        assert torch.equal(mine[2], reference[2])


DRAWS = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(3),
    "randint": lambda: torch.randint(9, (3,)),
    "randperm": lambda: torch.randperm(9),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "bernoulli": lambda: torch.bernoulli(torch.full((3,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(9), 3),
    "poisson": lambda: torch.poisson(torch.full((3,), 9.0)),
    "dropout": lambda: functional.dropout(torch.ones(9)),
    "alpha_dropout": lambda: functional.alpha_dropout(torch.ones(9), training=True),
    "native_dropout": lambda: torch.native_dropout(torch.ones(9), 0.5, True)[0],
    "attention": lambda: functional.scaled_dot_product_attention(
        *(torch.eye(4)[None, None],) * 3, dropout_p=0.5
    ),
    "rrelu": lambda: functional.rrelu(-torch.ones(9), training=True),
    "gumbel": lambda: functional.gumbel_softmax(torch.ones(9)),
    "gamma": lambda: torch.distributions.Gamma(2.0, 2.0).sample((3,)),
    "dirichlet": lambda: torch.distributions.Dirichlet(torch.ones(3)).sample(),
    "uniform_": lambda: torch.empty(3).uniform_(),
    "random_": lambda: torch.empty(3).random_(),
    "exponential_": lambda: torch.empty(3).exponential_(),
    "lstm": lambda: nn.LSTM(2, 2, 2, dropout=0.5)(torch.ones(3, 1, 2))[0],
    "fractional pool": lambda: functional.fractional_max_pool2d(
        torch.eye(8)[None, None], 2, output_size=4
    ),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_every_way_to_draw_is_repeated(draw):
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.seen = {False: [], True: []}

        def forward(self, x):
            self.seen[is_recomputing()].append(DRAWS[draw]().detach())
            return x * self.weight

    pipe = make_pipe(nn.Sequential(Stage()), "inline", chunks=3, checkpoint="always")
    output = pipe(torch.ones(6, 1)).local_value()
    state = torch.get_rng_state()
    output.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    for first, again in zip(pipe[0].seen[False], pipe[0].seen[True][::-1], strict=True):
        torch.testing.assert_close(first, again)  # an LSTM has other kernels without a graph
    torch.manual_seed(5)
    with torch.no_grad():
        pipe(torch.ones(6, 1))
    torch.manual_seed(5)
    for seen in pipe[0].seen[False][3:]:
        torch.testing.assert_close(DRAWS[draw]().detach(), seen)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_a_graph_repeats_a_stage_without_gradients(mode, way):
    """Dropout on the data: the stage has no gradient of its own, and the later ones depend on it."""
    torch.manual_seed(0)
    pipe = make_pipe(
        nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 4)), way, chunks=1, checkpoint=mode
    )
    plain = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 4))
    plain.load_state_dict(dict(zip(plain.state_dict(), pipe.state_dict().values(), strict=True)))
    x = torch.randn(4, 4)
    results = []
    for model in (plain, pipe):
        torch.manual_seed(1)
        output = model(x)
        output = output if model is plain else output.local_value()
        slopes = torch.autograd.grad(
            output.pow(3).sum(), list(model.parameters()), create_graph=True
        )
        results.append([*slopes, torch.rand(1)])
    for a, b in zip(*results, strict=True):
        assert_same(a, b, atol=1e-5, rtol=1e-5)


class Disturbed(nn.Module):
    """Dropout, and another thread that draws before it: in the first run, or when it runs again."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.again = again

    def forward(self, x):
        torch.rand(1)  # from here on the stage draws
        if is_recomputing() == self.again:
            other = threading.Thread(target=torch.rand, args=(1,))
            other.start()
            other.join()
        return functional.dropout(x * self.weight)


@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("way", WAYS)
def test_numbers_that_cannot_be_repeated_are_an_error(way, again):
    for mode in MODES:
        pipe = make_pipe(nn.Sequential(Disturbed(again)), way, chunks=2, checkpoint=mode)
        loss = pipe(torch.ones(4, 8)).local_value().sum()
        if mode == "never":
            loss.backward()
        else:
            state = torch.get_rng_state()
            with pytest.raises(RuntimeError, match=r"stage 0 .*another thread or another Pipe"):
                loss.backward()
            assert torch.equal(torch.get_rng_state(), state)
