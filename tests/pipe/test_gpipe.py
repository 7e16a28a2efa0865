"""weft.compat.GPipe: torchgpipe's constructor and results, without RPC."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from weft.compat import GPipe
from weft.pipe.balance import balance_by_size, balance_by_time

CPUS = ["cpu", "cpu"]


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
def test_it_trains_as_the_plain_layers_do(checkpoint):
    plain = layers()
    model = GPipe(copy.deepcopy(plain), [1, 2], devices=CPUS, chunks=3, checkpoint=checkpoint)
    x = torch.randn(7, 2)
    output = model(x)
    assert torch.equal(output, plain(x))
    output.sum().backward()
    plain(x).sum().backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("grad", [False, True])
def test_a_trace_is_a_function_of_its_input(grad):
    model = GPipe(layers(), [1, 2], devices=CPUS, chunks=3)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(model, (torch.ones(6, 2),))
    for rows in (6, 7, 9):
        x = torch.randn(rows, 2, requires_grad=True)
        found, expected = traced(x), model(x)
        torch.testing.assert_close(found, expected)
        ones = torch.ones_like(expected)
        torch.testing.assert_close(
            torch.autograd.grad(found, x, ones), torch.autograd.grad(expected, x, ones)
        )
    with pytest.raises(RuntimeError):
        traced(torch.ones(2, 2))  # two micro-batches


def test_it_says_how_it_is_cut():
    model = GPipe(layers(), balance=[1, 2], devices=["cpu", "cpu", "cpu"], chunks=4)
    assert (model.balance, len(model), model.chunks) == ([1, 2], 3, 4)
    assert model.devices == [torch.device("cpu")] * 2
    assert [len(part) for part in model.partitions] == [1, 2]


class Twice(nn.Module):
    def forward(self, x):
        return x, x * 2


class OfPair(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, pair):
        a, b = pair
        return self.fc(a), b


class Alone(nn.Module):
    def forward(self, pair):
        return (pair[0] + pair[1],)


class Only(nn.Module):
    def forward(self, alone):
        assert isinstance(alone, tuple)
        (a,) = alone
        return a


def pairs() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(Twice(), OfPair(), Alone(), Only())


@pytest.mark.parametrize("balance", [[4], [1, 3], [1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_layer_gets_a_tuple_as_one_argument(balance, checkpoint):
    plain = pairs()
    devices = ["cpu"] * len(balance)
    model = GPipe(copy.deepcopy(plain), balance, devices=devices, chunks=2, checkpoint=checkpoint)
    for one in (model, copy.deepcopy(model)):
        output = one(torch.ones(5, 3))
        assert torch.equal(output, plain(torch.ones(5, 3)))
        output.sum().backward()
        assert all(p.grad is not None for p in one.parameters())
    assert "peak" in str(model.memory_report(torch.ones(5, 3)))


@pytest.mark.parametrize("balance", [[2], [1, 1]], ids=str)
def test_a_tuple_goes_in_and_out_as_one_value(balance):
    plain = nn.Sequential(OfPair(), OfPair())
    model = GPipe(copy.deepcopy(plain), balance, devices=CPUS, chunks=2)
    a, b = torch.rand(5, 3, requires_grad=True), torch.rand(5, 3, requires_grad=True)
    output = model((a, b))
    assert isinstance(output, tuple)
    torch.testing.assert_close(output, plain((a, b)))
    sum(output).sum().backward()
    assert a.grad is not None and b.grad is not None
    assert "peak" in str(model.memory_report((a, b)))
    single = GPipe(nn.Sequential(Only()), [1], devices=CPUS)
    assert torch.equal(single((torch.ones(1, 3),)), torch.ones(1, 3))


def test_scripted_layers_get_a_tuple_as_one_argument():
    @torch.jit.script
    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    class Sum(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return add(pair[0], pair[1])

    model = GPipe(nn.Sequential(Twice(), torch.jit.script(Sum())), [1, 1], devices=CPUS, chunks=2)
    assert torch.equal(model(torch.ones(4, 2)), torch.full((4, 2), 3.0))


def test_several_arguments_are_refused():
    model = GPipe(layers(), [1, 2], devices=CPUS)
    with pytest.raises(TypeError, match="positional argument"):
        model(torch.ones(1, 2), torch.ones(1, 2))
    assert model.partitions[0](torch.ones(1, 2)).shape == (1, 3), "a call of the program's own"


@pytest.mark.parametrize("value", [[torch.ones(1, 2)], {"a": torch.ones(1, 2)}])
def test_what_is_not_split_is_refused_by_its_type(value):
    model = GPipe(layers(), [1, 2], devices=CPUS)
    with pytest.raises(TypeError, match=rf"any tensors: \({type(value).__name__}\); a tensor"):
        model(value)
    with pytest.raises(TypeError, match=rf"any tensors: \({type(value).__name__}\); a tensor"):
        model.memory_report(value)


def test_balances_of_layers_that_get_a_tuple_as_one_argument():
    sample = torch.ones(4, 3)
    assert balance_by_time(4, pairs(), sample, timeout=0, unpack=False) == [1, 1, 1, 1]
    assert sum(balance_by_size(2, pairs(), sample, chunks=2, unpack=False)) == 4
    pair = (sample, sample)
    assert balance_by_size(2, nn.Sequential(OfPair(), OfPair()), pair, unpack=False) == [1, 1]


def test_the_layers_keep_their_names_as_in_torchgpipe():
    plain = layers()
    model = GPipe(layers(), [1, 2], devices=CPUS)
    names = ["partitions.0.0", "partitions.1.2"]
    own = [f"{name}.{what}" for name in names for what in ("weight", "bias")]
    assert list(model.state_dict()) == own
    assert list(model.plain_state_dict()) == list(plain.state_dict())
    changed = {key: value + 1 for key, value in plain.state_dict().items()}
    of_torchgpipe = dict(zip(own, changed.values(), strict=True))
    for state in (of_torchgpipe, changed):
        model.load_state_dict(plain.state_dict())
        model.load_state_dict(state)
        assert torch.equal(model[0].weight, plain[0].weight + 1)


@pytest.mark.parametrize(
    ("balance", "devices", "kind", "says"),
    [
        (None, CPUS, ValueError, "balance is required"),
        ([1, 1], CPUS, ValueError, "does not cut 3 layers"),
        ([3, 0], CPUS, ValueError, "does not cut 3 layers"),
        ([1, 1, 1], CPUS, IndexError, "too few devices"),
    ],
)
def test_what_does_not_fit(balance, devices, kind, says):
    with pytest.raises(kind, match=says):
        GPipe(layers(), balance, devices=devices)


def test_it_takes_no_rpc():
    program = """
import torch
from torch import nn
from weft.compat import GPipe
model = GPipe(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [1, 1], devices=["cpu", "cpu"], chunks=2)
model(torch.ones(4, 2)).sum().backward()
print("fine")
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert (run.returncode, run.stdout) == (0, "fine\n"), run.stderr
