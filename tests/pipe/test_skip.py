"""The skip API outside a Pipe: what is declared, what is done, what is refused, and its words."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback

import pytest
import torch
from torch import nn

import weft
from weft.pipe.skip import Namespace, Skippable, pop, skippable, stash, verify_skippables
from weft.pipe.skip._layout import skip_layout


@skippable(stash=["1to3"])
class Layer1(nn.Module):
    """Stashes its input."""

    def forward(self, input):
        yield stash("1to3", input)
        return input * 2


class Layer2(nn.Module):
    def forward(self, input):
        return input + 1


@skippable(pop=["1to3"])
class Layer3(nn.Module):
    def forward(self, input):
        skip = yield pop("1to3")
        return input if skip is None else input + skip


def test_a_skip_reaches_its_pop_and_its_gradient_comes_back():
    x = torch.ones(3, requires_grad=True)
    y = nn.Sequential(Layer1(), Layer2(), Layer3())(x)
    assert torch.equal(y, torch.full((3,), 4.0))
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 3.0))


class Inside(nn.Module):
    """Has the layers in another order than that in which it runs them."""

    def __init__(self):
        super().__init__()
        self.last = Layer3()
        self.first = Layer1()

    def forward(self, input):
        return self.last(self.first(input))


@pytest.mark.usefixtures("alone")
def test_a_pipe_sees_the_skips_of_what_is_inside_its_layers():
    x = torch.ones(4, 3)
    for layers in (
        [Layer1(), weft.WithDevice(Layer3(), "cpu")],
        [Layer2(), Inside()],
    ):
        plain = nn.Sequential(*layers)
        pipe = weft.Pipe(copy.deepcopy(plain), chunks=2)
        assert torch.equal(pipe(x).local_value(), plain(x))
    missing = nn.Sequential(Layer1(), weft.WithDevice(Layer2(), "cpu"))
    with pytest.raises(TypeError, match=r"'1to3' as poppable but stashed \(by '0'\)"):
        weft.Pipe(missing)


def test_namespaces_tell_equal_names_apart():
    first, second = Namespace(), Namespace()
    model = nn.Sequential(
        Layer1().isolate(first),
        Layer1().isolate(second),
        Layer3().isolate(second),
        Layer3().isolate(first),
    )
    verify_skippables(model)
    assert model(torch.ones(1)).item() == 2 * 2 + 2 + 1


def test_only_some_names_are_isolated():
    @skippable(stash=["alice", "bob"])
    class Both(nn.Module):
        pass

    one, two = Namespace(), Namespace()
    module = Both().isolate(one, only=["alice"]).isolate(two, only=["bob"])
    assert set(module.stashable()) == {(one, "alice"), (two, "bob")}
    module = Both().isolate(one, only=["bob"])
    assert set(module.stashable()) == {(None, "alice"), (one, "bob")}


def test_namespaces_are_ordered_equal_when_copied_and_none_is_one():
    first, second = Namespace(), Namespace()
    assert first != second and (first < second) != (second < first)
    for same in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert same == first and hash(same) == hash(first)
    assert isinstance(None, Namespace) and first is not None and (first == None) is False  # noqa: E711


def test_several_arguments_and_results():
    @skippable(stash=["sum"])
    class Two(nn.Module):
        def forward(self, a, b, scale=1):
            yield stash("sum", a + b)
            return a * scale, b

    @skippable(pop=["sum"])
    class Join(nn.Module):
        def forward(self, a, b):
            return a + b + (yield pop("sum"))

    a, b = Two()(torch.ones(1), torch.ones(1), scale=3)
    assert Join()(a, b).item() == 6


@pytest.mark.parametrize("value", [None, torch.arange(3), torch.tensor([True, False, True])])
def test_none_integers_and_booleans_pass(value):
    @skippable(stash=["any"])
    class Give(nn.Module):
        def forward(self, input):
            yield stash("any", value)
            return input

    got = []

    @skippable(pop=["any"])
    class Take(nn.Module):
        def forward(self, input):
            got.append((yield pop("any")))
            return input

    nn.Sequential(Give(), Take())(torch.ones(3))
    assert got[0] is value


def test_a_forward_without_yield_and_one_that_returns_early():
    @skippable()
    class Plain(nn.Module):
        def forward(self, input):
            return input + 1

    assert Plain()(torch.zeros(1)).item() == 1


def test_what_was_declared_must_happen_and_nothing_else():
    def run(forward, **names):
        module = skippable(**names)(type("Odd", (nn.Module,), {"forward": forward}))()
        return module(torch.ones(1))

    def silent(self, input):
        return input

    def stashes(self, input):
        yield stash("x", input)
        return input

    def pops(self, input):
        return (yield pop("x"))

    def pops_twice(self, input):
        yield pop("x")
        yield pop("x")
        return input

    def nonsense(self, input):
        yield "stash"
        return input

    with pytest.raises(RuntimeError, match="'a', 'b' must be stashed but have not"):
        run(silent, stash=["b", "a"])
    with pytest.raises(RuntimeError, match="'x' has not been stashed"):
        run(pops, pop=["x"])
    with pytest.raises(RuntimeError, match="'x' has not been declared as stashable"):
        run(stashes)
    with pytest.raises(RuntimeError, match="'x' has not been declared as poppable"):
        run(pops)
    with pytest.raises(TypeError, match="'stash' is not a command from @skippable"):
        run(nonsense)
    run(stashes, stash=["x"])
    with pytest.raises(RuntimeError, match="'x' must be popped but have not"):
        run(silent, pop=["x"])
    run(stashes, stash=["x"])
    with pytest.raises(RuntimeError, match="'x' has been popped already"):
        run(pops_twice, pop=["x"])


def test_the_error_names_the_line_of_the_wrong_yield():
    @skippable()
    class Wrong(nn.Module):
        def forward(self, input):
            yield stash("nobody knows me", input)
            return input

    with pytest.raises(RuntimeError) as caught:
        Wrong()(torch.ones(1))
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert 'yield stash("nobody knows me", input)' in lines


def test_a_module_may_catch_what_its_yield_raises():
    @skippable()
    class Careful(nn.Module):
        def forward(self, input):
            try:
                yield pop("x")
            except RuntimeError:
                return input - 1
            return input

    assert Careful()(torch.ones(1)).item() == 0


def test_threads_do_not_see_each_others_skips():
    Layer1()(torch.ones(1))
    failed = []

    def elsewhere():
        try:
            Layer3()(torch.ones(1))
        except RuntimeError as error:
            failed.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(30)
    assert "has not been stashed" in failed[0]
    Layer3()(torch.ones(1))


def test_names_are_lists_not_strings():
    with pytest.raises(TypeError, match="list of names"):
        skippable(stash="1to3")
    with pytest.raises(TypeError, match="list of names"):
        Layer1().isolate(Namespace(), only="1to3")


def test_skippables_are_copied_and_pickled_with_their_namespaces():
    space = Namespace()
    model = nn.Sequential(Layer1().isolate(space), Layer2(), Layer3().isolate(space))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        verify_skippables(twin)
        assert twin(torch.ones(1)).item() == 4
        assert twin[0].namespaces["1to3"] == space


def test_a_skippable_looks_like_what_it_wraps():
    assert issubclass(Layer1, Skippable) and not isinstance(Layer2(), Skippable)
    assert (Layer1.__name__, Layer1.__doc__) == ("Layer1", "Stashes its input.")
    assert repr(Layer1()) == "@skippable(Layer1())"
    assert list(nn.Sequential(skippable()(nn.Linear)(1, 1)).state_dict()) == [
        "0.module.weight",
        "0.module.bias",
    ]


def test_a_class_that_is_decorated_afterwards_stays_what_it_was():
    skippable(stash=["x"])(nn.Linear)
    assert nn.Linear.__qualname__ == "Linear"
    assert isinstance(pickle.loads(pickle.dumps(nn.Linear(1, 1))), nn.Linear)


VERDICTS = {
    "no module declared '1to3' as poppable but stashed": [Layer1, Layer2],
    "'1' declared '1to3' as poppable but it was not stashed": [Layer2, Layer3],
    "'0' declared '1to3' as poppable but it was not stashed": [Layer3, Layer1],
    "'3' redeclared '1to3' as poppable but not isolated by namespace": [
        Layer1,
        Layer2,
        Layer3,
        Layer3,
    ],
    "'1' redeclared '1to3' as stashable but not isolated by namespace": [
        Layer1,
        Layer1,
        Layer2,
        Layer3,
    ],
    "'0' declared 'x' both as stashable and as poppable": [
        skippable(stash=["x"], pop=["x"])(nn.Identity)
    ],
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_verify_says_what_does_not_match(verdict):
    model = nn.Sequential(*(layer() for layer in VERDICTS[verdict]))
    with pytest.raises(TypeError, match="one or more pairs of stash and pop do not match") as error:
        verify_skippables(model)
    assert f"* {verdict}" in str(error.value)


def test_verify_lists_every_fault():
    with pytest.raises(TypeError) as error:
        verify_skippables(nn.Sequential(Layer3(), Layer1(), Layer1()))
    assert str(error.value).count("\n* ") == 3


def test_verify_looks_into_nested_sequentials():
    verify_skippables(nn.Sequential(nn.Sequential(Layer1(), Layer2()), Layer3()))
    with pytest.raises(TypeError, match=r"'0\.1' declared '1to3' as poppable"):
        verify_skippables(nn.Sequential(nn.Sequential(Layer2(), Layer3()), Layer1()))


def test_layout_finds_skippables_anywhere_in_a_partition():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Layer3()

        def forward(self, input):
            return self.inner(input)

    space = Namespace()
    inside = nn.Sequential(Layer1().isolate(space), Layer3().isolate(space))
    parts = [nn.Sequential(Layer1()), inside, nn.Sequential(Block())]
    assert skip_layout(parts) == {(None, "1to3"): (0, 2), (space, "1to3"): (1, 1)}


MODES = pytest.mark.parametrize("mode", ["never", "except_last", "always"])


class Watch(nn.Module):
    """A layer in between, which must not be given the skip."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def forward(self, *args):
        self.seen.add(len(args))
        return args[0] * 3


def piped(model, mode, chunks=3):
    import weft

    return weft.Pipe(copy.deepcopy(model), chunks, mode)


@MODES
@pytest.mark.usefixtures("alone")
def test_in_a_pipe_skips_go_straight_to_their_pop(mode):
    model = nn.Sequential(nn.Linear(2, 2), Layer1(), Watch(), Watch(), Layer3(), nn.Linear(2, 2))
    pipe = piped(model, mode)
    inputs = [torch.linspace(-1, 1, 14).view(7, 2).requires_grad_() for _ in range(2)]
    got, wanted = pipe(inputs[0]).local_value(), model(inputs[1])
    torch.testing.assert_close(got, wanted)
    for output in (got, wanted):
        output.square().sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    for mine, theirs in zip(pipe.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert pipe[2].seen == pipe[3].seen == {1}


@MODES
@pytest.mark.usefixtures("alone")
def test_in_a_pipe_integers_and_none_are_skips_too(mode):
    @skippable(stash=["number", "nothing"])
    class Give(nn.Module):
        def forward(self, x):
            yield stash("number", torch.arange(len(x)))
            yield stash("nothing", None)
            return x * 2

    @skippable(pop=["number", "nothing"])
    class Take(nn.Module):
        def forward(self, x):
            number = yield pop("number")
            nothing = yield pop("nothing")
            assert nothing is None and number.dtype == torch.int64
            return x + number.unsqueeze(1)

    model = nn.Sequential(Give(), Layer2(), Take())
    x = torch.ones(6, 2, requires_grad=True)
    out = piped(model, mode)(x).local_value()
    assert torch.equal(out[:, 0], torch.tensor([3.0, 4.0] * 3))
    out.sum().backward()
    assert torch.equal(x.grad, torch.full((6, 2), 2.0))


@MODES
@pytest.mark.usefixtures("alone")
def test_in_a_pipe_with_several_arguments_and_results(mode):
    @skippable(stash=["sum"])
    class Give(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(3.0))

        def forward(self, a, b, name):
            yield stash("sum", (a + b) * self.weight)
            return a * 2, b, name

    class Between(nn.Module):
        def forward(self, a, b, name):
            return a + b, name

    @skippable(pop=["sum"])
    class Take(nn.Module):
        def forward(self, both, name):
            return both * (yield pop("sum")), name

    model = nn.Sequential(Give(), Between(), Take())
    pipe = piped(model, mode)
    a, b = torch.linspace(0, 1, 6).view(6, 1), torch.linspace(1, 2, 6).view(6, 1).requires_grad_()
    out, names = pipe(a, b, "name").local_value()
    torch.testing.assert_close(out, (2 * a + b) * (a + b) * 3)
    assert list(names) == ["name"] * 3
    out.sum().backward()
    torch.testing.assert_close(b.grad, (3 * a + 2 * b).detach() * 3)
    torch.testing.assert_close(next(pipe.parameters()).grad, ((2 * a + b) * (a + b)).sum().detach())


@MODES
@pytest.mark.usefixtures("alone")
def test_in_a_pipe_within_a_partition_and_inside_a_block(mode):
    space = Namespace()
    inside = nn.Sequential(Layer1().isolate(space), Layer3().isolate(space))
    block = nn.Sequential(Layer3())  # a child of a child: not a layer of the partition
    model = nn.Sequential(Layer1(), inside, nn.Sequential(nn.Linear(2, 2), block))
    x = torch.ones(6, 2)
    torch.testing.assert_close(piped(model, mode)(x).local_value(), model(x))


@pytest.mark.usefixtures("alone")
def test_a_pipe_refuses_what_does_not_match():
    with pytest.raises(TypeError, match="one or more pairs of stash and pop do not match"):
        piped(nn.Sequential(Layer1(), Layer2()), "never")


@MODES
@pytest.mark.usefixtures("alone")
def test_in_a_pipe_a_skip_that_did_not_happen_is_named(mode):
    @skippable(stash=["1to3"])
    class Forgets(nn.Module):
        def forward(self, x):
            return x

    pipe = piped(nn.Sequential(Forgets(), Layer3()), mode)
    with pytest.raises(RuntimeError, match="'1to3' must be stashed but have not"):
        pipe(torch.ones(3, 2))


@MODES
@pytest.mark.usefixtures("alone")
def test_a_piped_model_with_skips_is_copied(mode):
    space = Namespace()
    pipe = piped(nn.Sequential(Layer1().isolate(space), Layer2(), Layer3().isolate(space)), mode)
    x = torch.ones(6, 2, requires_grad=True)
    for twin in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
        out = twin(x).local_value()
        assert torch.equal(out, pipe(x).local_value())
        out.sum().backward()
