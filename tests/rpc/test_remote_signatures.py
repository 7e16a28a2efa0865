"""weft.RemoteModule scripted: names of parameters, defaults, subclasses; its name, its mode and its state."""

from __future__ import annotations

import math

import pytest
import signature_models as models
import torch
import torch.distributed.rpc as rpc
from module_group import module_group
from torch import nn

import weft
from weft._remote.signature import signature_of

X = torch.ones(2)


group = module_group(2)


def remote(module_cls, *args, **options):
    return weft.RemoteModule("worker1/cpu", module_cls, args, **options)


def text_of(action) -> str:
    try:
        action()
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def clashing_names() -> None:
    for scripted in (False, True):
        there = remote(models.TakesLike, scripted=scripted)
        assert there(X, [1, 2], 3) == torch.jit.script(there)(X, [1, 2], 3) == 6
        there = remote(models.TakesModules, scripted=scripted)
        assert torch.equal(torch.jit.script(there)(X, X, X), X * 3)
    text = text_of(lambda: torch.jit.script(remote(models.TakesReserved)))
    assert "'_weft_args', a name that the remote call needs for itself" in text, text


def test_parameters_may_be_called_as_what_the_stub_uses(group):
    group[0].call(clashing_names)


def references() -> None:
    one = rpc.RRef(X)
    for scripted in (False, True):
        script = torch.jit.script(remote(models.TakesReferences, scripted=scripted))
        assert torch.equal(script(one, [one]), X * 2)


def test_references_to_tensors_are_parameters(group):
    group[0].call(references)


@pytest.mark.parametrize(
    ("module_cls", "says"),
    [
        (
            models.TakesGenerator,
            "'source' of signature_models.TakesGenerator.forward is a class (Gen",
        ),
        (
            models.GivesStreams,
            "the result of signature_models.GivesStreams.forward is a class (List",
        ),
        (models.TakesTree, "recursion"),
        (models.TakesUnreadable, "must be an expression"),
    ],
)
def test_types_that_no_call_carries_are_problems(module_cls, says):
    assert says in signature_of(module_cls()).problem


def test_a_scripted_module_without_forward_is_a_problem():
    assert "forward" in signature_of(torch.jit.script(models.WithoutForward())).problem


def defaults() -> None:
    n, f, s, z = torch.jit.script(remote(models.Defaults))()
    assert (n, f, s, math.copysign(1, z)) == (7, 0.5, "a", -1)


def test_defaults_of_subclasses_of_numbers_are_numbers(group):
    group[0].call(defaults)


def written_defaults() -> None:
    z = torch.jit.script(remote(models.ComplexDefault))()
    assert z.imag == math.inf and math.copysign(1, z.real) == -1
    for scripted in (False, True):
        there = remote(models.Static) if not scripted else torch.jit.script(remote(models.Static))
        assert torch.equal(there(X, X), X * 2)
    waited = torch.jit.script(remote(models.ReturnsFuture, scripted=True))
    assert torch.equal(waited(X), X)
    text = text_of(lambda: torch.jit.script(remote(models.NamedDefault)))
    assert "the default of 'p'" in text and "is a NamedTuple: make it None" in text, text


def test_defaults_that_are_hard_to_write_down(group):
    group[0].call(written_defaults)


def use(module):
    return module(X)


def subclasses() -> None:
    mine = models.Doubled("worker1", models.Times, (3.0,))
    for action in (
        lambda: torch.jit.script(mine),
        lambda: torch.jit.script(nn.Sequential(mine)),
        lambda: rpc.rpc_sync("worker1", use, args=(mine,)),
    ):
        text = text_of(action)
        assert "TypeError" in text and "let it hold a weft.RemoteModule" in text, text
        assert torch.equal(mine(X), X * 6)


def test_a_subclass_of_a_user_is_not_scripted_nor_sent(group):
    group[0].call(subclasses)


def same_name() -> None:
    first = remote(models.Times, 1.0, name="times")
    scripted = torch.jit.script(first)
    text = text_of(lambda: remote(models.Times, 5.0, name="times")(X))
    assert "publishes something by that name already" in text, text
    assert torch.equal(scripted(X), X)
    second = remote(models.Times, 5.0, name="times", replace=True)
    assert torch.equal(second(X), X * 5)
    assert torch.equal(scripted(X), X * 5)
    first.make_again()
    assert torch.equal(first(X), X)
    assert torch.equal(scripted(X), X)


def test_a_name_is_taken_over_only_by_request(group):
    group[0].call(same_name)


def modes() -> None:
    there = remote(models.made_in_eval_mode)
    model = torch.jit.script(nn.Sequential(there))
    assert there.training is False
    assert torch.equal(model(X), X)


def test_a_scripted_module_has_the_mode_of_its_owner(group):
    group[0].call(modes)


def versions() -> None:
    right = torch.arange(4.0).reshape(2, 2)
    for made, key in ((models.Versioned, "weight"), (models.nested, "0.weight")):
        alone = remote(made)
        assert alone.load_state_dict(made().state_dict()).missing_keys == []
        assert torch.equal(alone.state_dict()[key], right)
        model = nn.Sequential(alone)
        model.load_state_dict(model.state_dict(), assign=True)
        assert torch.equal(alone.state_dict()[key], right)
        old = dict(model.state_dict())  # from before there were versions
        model.load_state_dict(old)
        assert torch.equal(alone.state_dict()[key], right.t())
    model = nn.Sequential(remote(models.Versioned))
    model.load_state_dict(nn.Sequential(models.Versioned()).state_dict())
    assert torch.equal(model.state_dict()["0.weight"], right)
    plain = nn.Sequential(models.nested())
    plain.load_state_dict(nn.Sequential(remote(models.nested)).state_dict())
    assert torch.equal(plain.state_dict()["0.0.weight"], right)


def test_states_keep_their_versions(group):
    group[0].call(versions)
