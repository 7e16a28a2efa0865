"""weft.compat.GPipe: torchgpipe's constructor and results, without RPC."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from weft.compat import GPipe

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


def test_it_says_how_it_is_cut():
    model = GPipe(layers(), balance=[1, 2], devices=["cpu", "cpu", "cpu"], chunks=4)
    assert (model.balance, len(model), model.chunks) == ([1, 2], 3, 4)
    assert model.devices == [torch.device("cpu")] * 2
    assert [len(part) for part in model.partitions] == [1, 2]


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
