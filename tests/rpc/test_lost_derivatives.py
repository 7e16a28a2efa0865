"""What a call cannot carry of autograd is refused, and what a caller's mode says holds for its calls."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from module_group import module_group

import weft

X = torch.arange(4.0)

group = module_group(2)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def with_tangent(function) -> object:
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(X, X))


TRANSFORMS = {
    "dual": with_tangent,
    "jvp": lambda function: torch.func.jvp(function, (X,), (X,)),
    "grad": lambda function: torch.func.grad(lambda x: function(x).sum())(X),
    "vmap": lambda function: torch.vmap(function)(X),
}


def refusal(transform: str, to: str) -> str:
    try:
        TRANSFORMS[transform](lambda x: rpc.rpc_sync(to, doubled, args=(x,)))
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_what_calls_do_not_carry_is_refused(group, transform, to):
    text = group[0].call(refusal, transform, to)
    assert f"worker '{to}'" in text, text
    what = "has a forward-mode gradient" if transform == "dual" else "transform of torch.func"
    assert what in text, text


def used_tangent_elsewhere() -> None:
    """A tensor without a tangent may be sent while others have one."""
    with forward_ad.dual_level():
        forward_ad.make_dual(X.clone(), X)
        assert torch.equal(rpc.rpc_sync("worker1", doubled, args=(X,)), X * 2)


def test_forward_mode_does_not_hinder_other_tensors(group):
    group[0].call(used_tangent_elsewhere)


def is_inference(x: torch.Tensor) -> bool:
    x.add_(1)
    return x.is_inference()


def called_in_inference_mode(to: str) -> bool:
    with torch.inference_mode():
        return rpc.rpc_sync(to, is_inference, args=(torch.ones(2),))


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_arguments_are_plain_tensors_whatever_the_callers_mode(group, to):
    assert group[0].call(called_in_inference_mode, to) is False


def publish_linear() -> None:
    weft.publish("linear", torch.jit.script(torch.nn.Linear(4, 4)))


def backward_beside_a_call_without_gradients(to: str) -> torch.Tensor:
    x = X.clone().requires_grad_()
    with dist_autograd.context() as context:
        with torch.no_grad():
            weft.call(f"{to}/linear", x)
        dist_autograd.backward(context, [(x * 3).sum()])
        return dist_autograd.get_gradients(context)[x]


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_a_backward_does_not_wait_for_a_call_under_no_grad(group, to):
    group.all(publish_linear)
    gradients = group[0].call(backward_beside_a_call_without_gradients, to, timeout=20)
    assert torch.equal(gradients, torch.full((4,), 3.0))


def recorded(context: int) -> int:
    """How many calls of that context are recorded here."""
    try:
        found = dist_autograd._retrieve_context(context)
    except RuntimeError:  # nobody has told this worker of it
        return 0
    return len(found._send_functions()) + len(found._recv_functions())


def nothing_recorded_of_references(to: str) -> None:
    x = X.clone().requires_grad_()
    with dist_autograd.context() as context:
        with torch.no_grad():
            torch.ops.weft.fetch(weft.call_remote(f"{to}/linear", x))
        assert rpc.rpc_sync(to, recorded, args=(context,)) == 0
        assert dist_autograd._current_context()._context_id() == context


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_references_made_and_fetched_under_no_grad_are_not_recorded(group, to):
    group.all(publish_linear)
    group[0].call(nothing_recorded_of_references, to, timeout=20)
