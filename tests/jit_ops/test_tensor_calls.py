"""Calls inside compiled and exported graphs: torch.ops.weft.call_tensors; and calls between graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from published_models import Encoder
from torch import Tensor, nn
from workers import Group

import weft

X = torch.arange(6.0).reshape(2, 3) / 7
OPS = torch.ops.weft

# What workers run.

_encoder = Encoder()


class Twice(nn.Module):
    """One tensor as two results, and a view of it as a third."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r = x * y
        return r, r, r[0]


def publish_all() -> None:
    weft.publish("encoder", torch.jit.script(_encoder))
    weft.publish("plain", _encoder)
    weft.publish("quiet", torch.jit.script(Encoder()), no_grad=True)
    weft.publish("twice", torch.jit.script(Twice()))


def server_gradients(context: int) -> list[Tensor]:
    """Of the published parameters, in the server's context of that id."""
    found = dist_autograd.get_gradients(context)
    return [found[parameter] for parameter in _encoder.parameters()]


class Model(nn.Module):
    """Local layers around two calls of the same module."""

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.linspace(-1, 1, 9).reshape(3, 3))
        self.encode = encode

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(torch.tanh(x @ self.before)) * self.encode(x * 2).sin()


def own_memory() -> bool:
    """Whether the results of a module that returns one tensor twice can be changed one by one."""
    first, second, _ = OPS.call_tensors("worker0", "twice", [X, X], [X, X, X[0]])
    before = second.clone()
    first.add_(1)
    return torch.equal(second, before)


_calls = 0


def publish_counter() -> None:
    def count(x: Tensor) -> Tensor:
        global _calls
        _calls += 1
        return x

    weft.publish("counter", count)


def calls_counted() -> int:
    return _calls


def unused(backend: str) -> None:
    """A call whose result nobody uses is made, once for each run, as is the one beside it."""

    def body(x: Tensor) -> Tensor:
        OPS.call_tensors("worker0", "counter", [x], [x])
        return OPS.call_tensors("worker0", "counter", [x], [x])[0]

    module = type("M", (nn.Module,), {"forward": lambda self, x: body(x)})()
    before = rpc.rpc_sync("worker0", calls_counted)
    # The cache on disk does not know which operators have effects.
    with torch._inductor.config.patch(force_disable_caches=True):
        if backend == "export":
            run = torch.export.export(module, (X,)).run_decompositions().module()
        else:
            run = torch.compile(body, backend=backend, fullgraph=True)
        with torch.no_grad():
            run(X)
        run(X)
    assert rpc.rpc_sync("worker0", calls_counted) == before + 4


def left_as_it_is(how: str) -> None:
    """weft.call and weft.RemoteModule under torch.compile: between two graphs, with all gradients."""
    remote = weft.RemoteModule("worker0", Encoder) if how == "module" else None
    model = Model(remote or (lambda x: weft.call("worker0/plain", x)))
    encoder = Encoder()
    local = Model(encoder)
    local(X).square().sum().backward()
    compiled = torch.compile(model, backend="aot_eager")
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [compiled(X).square().sum()])
        found = dist_autograd.get_gradients(context)
        if remote is not None:
            there = list(remote.remote_grads(context).values())
        else:
            there = rpc.rpc_sync("worker0", server_gradients, (context,))
    assert torch.equal(found[model.before], local.before.grad)
    for one, other in zip(there, encoder.parameters(), strict=True):
        assert torch.equal(one, other.grad)


def refusals(how: str) -> list[str]:
    """What a call says to an input that needs gradients, and in a context, where parameters may."""
    module = Model(lambda x: OPS.call_tensors("worker0", "encoder", [x], [x[:, :2]])[0])
    module.before.requires_grad_(False)
    run: Callable[[Tensor], Tensor] = module
    if how == "compile":
        run = torch.compile(module, backend="aot_eager", fullgraph=True)
    if how == "export":
        run = torch.export.export(module, (X,)).module()
    assert torch.equal(run(X), Model(Encoder())(X).detach())
    texts = []
    try:
        run(X.clone().requires_grad_())
    except RuntimeError as error:
        texts.append(str(error))
    for recording in (True, False):
        with dist_autograd.context(), torch.set_grad_enabled(recording):
            try:
                run(X)
            except RuntimeError as error:
                texts.append(str(error))
    return texts


def forward_mode() -> list[str]:
    """What each way of calling says to a tensor with a tangent."""
    calls = (
        lambda x: OPS.call_tensors("worker0", "encoder", [x], [x[:, :2]]),
        lambda x: weft.call("worker0/encoder", x),
        lambda x: weft.call_async("worker0/encoder", x).wait(),
        lambda x: weft.call_remote("worker0/encoder", x).to_here(),
    )
    texts = []
    for call in calls:
        with forward_ad.dual_level():
            try:
                call(forward_ad.make_dual(X, X))
            except RuntimeError as error:
                texts.append(str(error))
    try:
        torch.func.jvp(calls[0], (X,), (X,))
    except RuntimeError as error:
        texts.append(str(error))
    with forward_ad.dual_level():  # one that is not used
        calls[0](X)
        calls[1](X)
    return texts


def call_what_gives_no_gradients() -> None:
    """Three times: the warning comes once. No backward follows: torch's engine would wait forever."""
    with dist_autograd.context():
        weft.call("worker0/quiet", X)  # nothing is expected of this one
        for _ in range(2):
            weft.call("worker0/quiet", X.clone().requires_grad_())
        weft.call_async("worker0/quiet", X.clone().requires_grad_()).wait()


@pytest.fixture(scope="module")
def pair():
    with Group(2) as group:
        group[0].call(publish_all)
        yield group
        group.shutdown()


def test_results_share_no_memory(pair):
    assert pair[1].call(own_memory)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "export"])
def test_a_call_whose_result_is_not_used_is_made(pair, backend):
    pair[0].call(publish_counter)
    pair[1].call(unused, backend, timeout=110)


@pytest.mark.parametrize("how", ["call", "module"])
def test_other_calls_are_left_between_graphs(pair, how):
    pair[1].call(left_as_it_is, how, timeout=100)


@pytest.mark.parametrize("how", ["eager", "compile", "export"])
def test_gradients_are_not_dropped_silently(pair, how):
    texts = pair[1].call(refusals, how, timeout=100)
    assert len(texts) == 3
    for text in texts:
        assert "no gradients go through call_tensors" in text
        assert "encoder.forward at worker 'worker0'" in text


def test_there_are_no_forward_mode_gradients(pair):
    texts = pair[1].call(forward_mode)
    assert len(texts) == 5
    for text in texts:
        assert "has a forward-mode gradient" in text
        assert "worker 'worker0'" in text


def test_a_call_that_would_stop_backward_is_warned_of():
    with Group(2) as group:
        group[0].call(publish_all)
        group[1].call(call_what_gives_no_gradients)
        text = "the result of quiet.forward at worker 'worker0' needs no gradients"
        assert group[1].output().count(text) == 1
        group.shutdown()
