"""Calls of one caller follow one another on the callee's devices, also where nothing comes back.

Calls run on streams of their own; what changes a tensor in place is late.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup, wait_until_lent
from devices import OTHER_CUDA
from emulation import seed
from test_rpc import lent_by
from torch import nn
from torch.distributed.optim import DistributedOptimizer

import weft

WORKERS = pytest.mark.parametrize("worker", ["worker0", "worker1"])


# What workers run.

KEPT: dict[str, torch.Tensor] = {}


def make() -> None:
    KEPT["x"] = torch.zeros(1000, device="cuda:0")


def change(factor: float) -> None:
    """Late: each operator waits for the one before."""
    KEPT["x"].mul_(factor).add_(1)


def read() -> torch.Tensor:
    return KEPT["x"] * 1


def changed_in_place(worker: str) -> None:
    rpc.rpc_sync(worker, make)
    for _ in range(4):
        rpc.rpc_sync(worker, change, args=(2.0,))
    assert rpc.rpc_sync(worker, read).sum().item() == 15 * 1000


@WORKERS
def test_what_a_call_changes_in_place_is_there_for_the_next_one(seeded, worker):
    lent_by(seeded, changed_in_place, worker)


def zeros() -> torch.Tensor:
    return torch.zeros(1000, device="cuda:0")


def change_behind(rref: rpc.RRef) -> None:
    rref.local_value().mul_(2).add_(1)


def changed_behind_an_rref() -> None:
    there = rpc.remote("worker1", zeros)
    for step in range(4):
        rpc.rpc_sync("worker1", change_behind, args=(there,))
        assert there.to_here().sum().item() == 1000 * (2 ** (step + 1) - 1)


def test_what_an_rref_holds_is_fetched_after_it_was_changed(seeded):
    lent_by(seeded, changed_behind_an_rref)


def changed_while_it_is_copied() -> None:
    """What a worker answers itself is a copy, which is late as well."""
    here = rpc.remote("worker0", zeros)
    answers = []
    for _ in range(4):
        rpc.rpc_sync("worker0", change_behind, args=(here,))
        answers.append(here.rpc_sync().contiguous())  # itself
    sums = [answer.sum().item() for answer in answers]
    assert sums == [1000 * (2 ** (step + 1) - 1) for step in range(4)]


def test_an_answer_is_copied_before_the_next_call_changes_it(seeded):
    lent_by(seeded, changed_while_it_is_copied)


class Scaled(nn.Module):
    """Needs no input from another device, so it reads its parameters at once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1000))

    def forward(self, scale: float) -> torch.Tensor:
        return self.weight * scale


def train_a_remote_module() -> None:
    """The caller has nothing to do between an optimizer's step and the next forward."""
    module, plain = weft.RemoteModule(f"worker1/{OTHER_CUDA}", Scaled), Scaled()
    optimizer = DistributedOptimizer(torch.optim.SGD, module.remote_parameters(), lr=1.0)
    own = torch.optim.SGD(plain.parameters(), lr=1.0)
    losses = []
    for _ in range(4):
        with dist_autograd.context() as context:
            losses.append(module(3.0).sum())
            dist_autograd.backward(context, losses[-1:])
            optimizer.step(context)
    for loss in losses:
        own.zero_grad()
        expected = plain(3.0).sum()
        expected.backward()
        own.step()
        assert loss.item() == expected.item()


def test_parameters_of_a_remote_module_are_changed_before_they_are_used():
    """A step's kernels take longer than the next forward takes to come."""
    with CudaGroup({"EMULATED_CUDA_MAX_DELAY_US": "5000"}) as group:
        for rank in range(2):
            group[rank].call(wait_until_lent, f"worker{1 - rank}")
        for delays in range(20):
            group.all(seed, delays)
            lent_by(group, train_a_remote_module)
        group.end()
