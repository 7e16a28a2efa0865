"""weft.RemoteModule: what changes the module at its owner: casts, makings anew, and failed scriptings."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.distributed.rpc as rpc
from module_group import module_group
from torch import Tensor, nn
from waiting import wait_for

import weft

X = torch.ones(2)

group = module_group(2)

_alive: weakref.WeakSet[nn.Module] = weakref.WeakSet()


class Mixed(nn.Module):
    """A tensor of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.real = nn.Parameter(torch.ones(2))
        self.turning = nn.Parameter(torch.tensor([1 + 2j, 3 + 4j]))
        self.register_buffer("count", torch.tensor([5, 6]))
        self.register_buffer("mask", torch.tensor([True, False]))


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        _alive.add(self)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def alive_with(factor: float) -> int:
    gc.collect()
    return sum(module.factor == factor for module in _alive)


CASTS = {
    "half": lambda module: module.half(),
    "float": lambda module: module.float(),
    "double": lambda module: module.double(),
    "bfloat16": lambda module: module.bfloat16(),
    "to": lambda module: module.to(torch.float64),
    "to complex": lambda module: module.to(torch.complex128),
    "type": lambda module: module.type(torch.float64),
    "device": lambda module: module.to("cpu"),
}


def cast(name: str, around: bool) -> None:
    plain = Mixed()
    there = weft.RemoteModule("worker1", Mixed)
    CASTS[name](plain)
    CASTS[name](nn.Sequential(there) if around else there)
    state = there.state_dict()
    for key, tensor in plain.state_dict().items():
        assert state[key].dtype == tensor.dtype, (name, key)
        assert torch.equal(state[key], tensor), (name, key)


@pytest.mark.filterwarnings("ignore:Casting complex values")
@pytest.mark.parametrize("around", [False, True], ids=["module", "model around"])
@pytest.mark.parametrize("name", CASTS)
def test_a_cast_does_there_what_it_does_here(group, name, around):
    group[0].call(cast, name, around)


def make_again(name: str | None) -> None:
    there = weft.RemoteModule("worker1", Times, (3.0,), name=name)
    scripted = torch.jit.script(there)
    there._made_of = (Times, (7.0,), *there._made_of[2:])  # as if the class made another now
    there.make_again()
    assert torch.equal(there(X), X * 7)
    assert torch.equal(scripted(X), X * 7)
    assert torch.equal(torch.jit.script(there)(X), X * 7)


@pytest.mark.parametrize("name", [None, "again"])
def test_a_scripted_model_calls_the_module_that_was_made_again(group, name):
    group[0].call(make_again, name)


def replace() -> int:
    there = weft.RemoteModule("worker1", Times, (11.0,), name="replaced")
    for factor in (3.0, 5.0, 11.0, 7.0, 11.0):
        there._made_of = (Times, (factor,), *there._made_of[2:])
        there.make_again()
    assert torch.equal(there(X), X * 11)
    assert torch.equal(weft.call("worker1/replaced", X), X * 11)
    wait_for(lambda: rpc.rpc_sync("worker1", alive_with, args=(11.0,)), 1, "the modules left")
    return len([one for one in weft.published("worker1") if one.name == "replaced"])


def test_a_replaced_module_is_let_go(group):
    assert group[0].call(replace) == 1


def fail_to_publish() -> None:
    from weft._remote import at_owner

    there = weft.RemoteModule("worker0", Times, (3.0,))
    right, at_owner.publish_as = at_owner.publish_as, None
    try:
        torch.jit.script(there)
    except Exception:
        pass
    finally:
        at_owner.publish_as = right
    assert there.name is None
    assert torch.equal(torch.jit.script(there)(X), X * 3)


def test_a_failed_script_leaves_the_module_without_a_name(group):
    group[0].call(fail_to_publish)
