"""Values of a stage that are in one memory: what one layer changes in place the others see, as without a
Pipe, or the change is refused by name."""

from __future__ import annotations

import pytest
import torch
from pipe_models import MODES, WAYS, F, assert_same, gradients, make_pipe, plain_copy
from torch import nn

from weft.pipe import NoChunk
from weft.pipe._partition import PipeSequential
from weft.pipe.skip import pop, skippable, stash

pytestmark = pytest.mark.usefixtures("alone")
REFUSED = "in place, and its memory also belongs to"


def run_both(*functions, mode, way, refused=False, inputs=None, chunks=2):
    """Three steps of a Pipe and of the plain model; the Pipe may refuse where it says so."""
    plain = PipeSequential(*(F(function) for function in functions))
    pipe = make_pipe(plain_copy(plain), way, chunks=chunks, checkpoint=mode)
    for step in range(3):
        torch.manual_seed(step)
        given = inputs() if inputs else [torch.randn(6, 4)]
        mine = [x.clone().requires_grad_() for x in given]
        theirs = [x.clone().requires_grad_() for x in given]
        for model in (pipe, plain):
            model.zero_grad()
        expected = plain(*theirs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        sum(y.square().sum() for y in expected).backward()
        if refused:
            with pytest.raises(RuntimeError, match=REFUSED):
                pipe(*mine)
            continue
        output = pipe(*mine).local_value()
        output = output if isinstance(output, tuple) else (output,)
        for a, b in zip(output, expected, strict=True):
            assert_same(a, b)
        sum(y.square().sum() for y in output).backward()
        assert_same(gradients(pipe), gradients(plain), atol=1e-4, rtol=1e-4)
        for a, b in zip(mine, theirs, strict=True):
            assert_same(a.grad, b.grad, atol=1e-4, rtol=1e-4)


def twice(w, x):
    y = x * w
    return y, y


both = pytest.mark.parametrize("mode", MODES)
ways = pytest.mark.parametrize("way", WAYS)


@both
@ways
def test_a_tensor_twice_stays_one_tensor(mode, way):
    run_both(twice, lambda w, a, b: a.relu_() * w + b, mode=mode, way=way)


@both
@ways
def test_a_tensor_twice_through_a_stage(mode, way):
    run_both(
        twice,
        lambda w, a, b: (a, a + w, b),
        lambda w, a, c, b: a.relu_() * w + b + c,
        mode=mode,
        way=way,
    )


@both
@ways
def test_a_view_beside_its_tensor(mode, way):
    def views(w, x):
        y = x * w
        return y, y[:, :2]

    run_both(
        views, lambda w, a, b: a.relu_().sum(1) * w + b.sum(1), mode=mode, way=way, refused=True
    )
    run_both(views, lambda w, a, b: a.relu().sum(1) * w + b.sum(1), mode=mode, way=way)


@both
@ways
def test_aliases_through_a_stage_that_may_be_given_copies(mode, way):
    """A stage that changes a value gets copies of all that it needs again."""

    def views(w, x):
        y = x * w
        return y, y[:, :2], y + 1

    def changes_another(w, a, b, c):
        return a, b, c.mul_(2) * w

    def changes_one(w, a, b, c):
        return a.relu_().sum(1) * w + b.sum(1) + c.sum(1)

    run_both(views, changes_another, changes_one, mode=mode, way=way, refused=True)


@both
@ways
def test_halves_of_a_tensor_are_apart(mode, way):
    """Slices of one tensor that have no element in common may be changed in place."""

    def halves(w, x):
        y = x * w
        return y[:, :2], y[:, 2:]

    run_both(halves, lambda w, a, b: a.relu_() * w + b, mode=mode, way=way)


@skippable(stash=["kept"])
class Stash(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        yield stash("kept", y)
        return y


@skippable(pop=["kept"])
class Pop(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        kept = yield pop("kept")
        return self.linear(x) + kept


@both
@ways
@pytest.mark.parametrize(
    "between", [nn.ReLU(inplace=True), nn.Sequential(nn.Identity(), nn.Flatten())]
)
def test_a_skip_under_way(mode, way, between):
    plain = nn.Sequential(
        Stash(),
        *([between] if len(list(between.children())) == 0 else between),
        nn.ReLU(inplace=True),
        Pop(),
    )
    pipe = make_pipe(plain_copy(plain), way, chunks=2, checkpoint=mode)
    x = torch.randn(6, 4)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=REFUSED):
            pipe(x)
    with torch.no_grad():  # one memory, as without a Pipe
        assert_same(pipe(x).local_value(), plain(x))


@both
@ways
def test_a_skip_to_the_next_stage_is_the_same_tensor(mode, way):
    @skippable(pop=["kept"])
    class InPlace(nn.Module):
        def forward(self, x):
            kept = yield pop("kept")
            return x.relu_() * kept

    plain = nn.Sequential(Stash(), InPlace())
    pipe = make_pipe(plain_copy(plain), way, chunks=2, checkpoint=mode)
    x = torch.randn(6, 4)
    for _ in range(3):
        pipe.zero_grad(), plain.zero_grad()
        assert_same(pipe(x).local_value(), plain(x))
        pipe(x).local_value().sum().backward()
        plain(x).sum().backward()
        assert_same(gradients(pipe), gradients(plain))


@both
@ways
def test_a_parameter_that_is_passed_on_is_not_changed(mode, way):
    pipe = make_pipe(
        nn.Sequential(F(lambda w, x: (x * w, w)), F(lambda w, x, v: x * v.mul_(2) * w)),
        way,
        chunks=2,
        checkpoint=mode,
    )
    with pytest.raises(RuntimeError, match=REFUSED):
        pipe(torch.ones(4, 4))


@both
@ways
def test_an_input_twice_is_one_input(mode, way):
    plain = PipeSequential(F(lambda w, a, b: (a * 1).mul_(w) + b), F(lambda w, x: x * w))
    pipe = make_pipe(plain_copy(plain), way, chunks=2, checkpoint=mode)
    leaf = [torch.linspace(-1, 1, 16).view(4, 4).requires_grad_() for _ in range(2)]
    for model, x in ((pipe, leaf[0]), (plain, leaf[1])):
        x = x * 1
        output = model(x, x)
        output = output if isinstance(output, torch.Tensor) else output.local_value()
        output.square().sum().backward()
    assert_same(leaf[0].grad, leaf[1].grad)
    x = leaf[0]
    (slope,) = torch.autograd.grad(pipe(x, x).local_value().square().sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(plain(x, x).square().sum(), x, create_graph=True)
    assert_same(slope, expected)


@both
@ways
def test_a_whole_input_is_the_same_for_every_micro_batch(mode, way):
    """One that is not split, and that a stage changes in place: each micro-batch finds it as it was."""

    def write(w, x, t):
        return x * w, t.add_(1)

    plain = PipeSequential(F(write), F(lambda w, x, t: x * t * w))
    pipe = make_pipe(plain_copy(plain), way, chunks=3, checkpoint=mode)
    x = torch.randn(6, 4)
    for grad in (True, True, False):
        with torch.set_grad_enabled(grad):
            pipe.zero_grad(), plain.zero_grad()
            output = pipe(x, NoChunk(torch.ones(4))).local_value()
            expected = plain(x, torch.ones(4))
            assert_same(output, expected)
            if grad:
                output.sum().backward()
                expected.sum().backward()
                assert_same(gradients(pipe), gradients(plain))


@both
@pytest.mark.parametrize("chunks", [1, 2])
def test_outputs_in_one_memory(mode, chunks):
    """What the caller does to one output in place, the other's gradient knows."""
    plain = PipeSequential(F(lambda w, x: x * w), F(lambda w, x: (x, x, x[:, :2], x * w)))
    pipe = make_pipe(plain_copy(plain), chunks=chunks, checkpoint=mode)
    x = torch.randn(4, 4)
    a, b, part, _ = pipe(x).local_value()
    c, d, *_ = plain(x)
    assert a is b or a.data_ptr() == b.data_ptr()
    (a.mul_(2) + b).sum().backward(retain_graph=True)
    (c.mul_(2) + d).sum().backward()
    assert_same(gradients(pipe), gradients(plain))
    assert part.data_ptr() != a.data_ptr()


@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("grad", [True, False])
def test_outputs_have_their_memory_where_no_gradient_is_wanted(chunks, grad):
    class Both(nn.Module):
        def forward(self, x):
            return x, x.detach()

    pipe = make_pipe(nn.Sequential(Both()), chunks=chunks)
    x = torch.zeros(4, 4)
    with torch.set_grad_enabled(grad):
        a, b = pipe(x).local_value()
        a.add_(1)
    assert not x.any() and not b.any()


@pytest.mark.parametrize("grad", [True, False])
def test_outputs_are_not_the_parameters_and_buffers_themselves(grad):
    class Gives(nn.Module):
        def __init__(self):
            super().__init__()
            self.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
            self.weight = nn.Parameter(torch.zeros(3))
            self.register_buffer("kept", torch.zeros(3))

        def forward(self, x):
            return x * self.weight, self.weight, self.frozen, self.kept

    pipe = make_pipe(nn.Sequential(Gives()), chunks=1)
    with torch.set_grad_enabled(grad):
        for output in pipe(torch.ones(3)).local_value():
            output.add_(1)
    for tensor in (*pipe.parameters(), *pipe.buffers()):
        assert not tensor.any()


@both
@ways
def test_an_input_changed_before_the_backward(mode, way):
    """A recomputation would use the new values: the error it is where autograd has saved the tensor."""
    pipe = make_pipe(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), way, chunks=1, checkpoint=mode)
    x = torch.ones(4, 4)
    output = pipe(x).local_value()
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@both
@ways
def test_in_place_on_pieces_of_one_mini_batch(mode, way):
    """Pieces are one tensor where autograd watches for changes; a piece that is written gets a copy."""
    plain = nn.Sequential(F(lambda w, x: x.mul_(2) * w), nn.Linear(4, 4))
    pipe = make_pipe(plain_copy(plain), way, chunks=3, checkpoint=mode)
    for _ in range(3):
        pipe.zero_grad(), plain.zero_grad()
        pipe(torch.ones(6, 4)).local_value().sum().backward()
        plain(torch.ones(6, 4)).sum().backward()
        assert_same(gradients(pipe), gradients(plain))


@both
@ways
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("passed_on", [False, True])
@pytest.mark.parametrize("leaf", [False, True])
def test_in_place_on_a_view_of_a_piece(mode, way, chunks, passed_on, leaf):
    """Of the first stage's input, or of what the first stage passes on."""
    write = F(lambda w, x: x.t().t().relu_() * w)
    layers = [nn.Identity(), write] if passed_on else [write]
    plain = nn.Sequential(*layers, nn.Linear(4, 4))
    pipe = make_pipe(plain_copy(plain), way, chunks=chunks, checkpoint=mode)
    for _ in range(3):
        pipe.zero_grad(), plain.zero_grad()
        mine = torch.linspace(-1, 1, 24).view(6, 4).requires_grad_()
        theirs = mine.detach().clone().requires_grad_()
        given = mine if leaf else mine * 1
        pipe(given).local_value().sum().backward()
        plain(theirs * 1).sum().backward()
        assert_same(gradients(pipe), gradients(plain))
        assert_same(mine.grad, theirs.grad)
        assert given.min() == -1, "the caller's tensor is as it was"


@both
@ways
def test_aliases_of_a_piece_that_is_passed_on(mode, way):
    """A copy of the one would not change with the other."""
    functions = (lambda w, x: (x, x[:, :2]), lambda w, a, b: a.relu_().sum(1) * w + b.sum(1))
    pipe = make_pipe(PipeSequential(*(F(f) for f in functions)), way, chunks=2, checkpoint=mode)
    for _ in range(3):
        x = -torch.ones(6, 4, requires_grad=True)
        with pytest.raises(RuntimeError, match=REFUSED):
            pipe(x)


@both
@ways
@pytest.mark.parametrize("first", [(), (nn.Identity(),)])
def test_double_backward_where_a_piece_is_written(mode, way, first):
    plain = nn.Sequential(*first, F(lambda w, x: x.relu_() * w), nn.Linear(4, 4), nn.Tanh())
    pipe = make_pipe(plain_copy(plain), way, chunks=3, checkpoint=mode)
    for _ in range(2):
        found = []
        for model in (lambda x: pipe(x).local_value(), plain):
            leaf = torch.linspace(-1, 1, 24).view(6, 4).requires_grad_()
            output = model(leaf * 1)
            (slope,) = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), leaf)[0])
        assert_same(*found)


def test_in_plain_order_a_written_input_must_not_overlap_another():
    """Forward-mode AD runs in plain order, where a copy of the first input is written."""
    functions = (lambda w, a, b: (a.mul_(2) * w, b), lambda w, a, b: a + b * w)
    pipe = make_pipe(PipeSequential(*(F(function) for function in functions)), "auto", chunks=1)
    x = torch.randn(2, 3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        with pytest.raises(RuntimeError, match=REFUSED):
            pipe(dual, x)
        pipe(dual, x.clone())


def test_a_run_with_a_graph_needs_the_input_as_it_was():
    """A single micro-batch whose data the first stage overwrites, for the want of a reason to copy it."""
    pipe = make_pipe(nn.Sequential(F(lambda w, x: x.mul_(2) * w)), "auto", chunks=1)
    output = pipe(torch.ones(2, 3)).local_value()
    weight = next(pipe.parameters())
    with pytest.raises(RuntimeError, match="modified by an inplace operation: an input of a Pipe"):
        torch.autograd.grad(output.square().sum(), weight, create_graph=True)
