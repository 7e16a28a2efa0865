"""Calls inside compiled and exported graphs: torch.ops.weft.call_tensors with its gradients."""

from __future__ import annotations

import os
import signal

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from published_models import Encoder
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from workers import Group

import weft

X = torch.arange(6.0).reshape(2, 3) / 7
OPS = torch.ops.weft

# What workers run.

_encoder = Encoder()


class Picker(nn.Module):
    """Tensors that need gradients beside one that cannot."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * y.sum(), x.argmax(1), y.exp()


class Twice(nn.Module):
    """One tensor as two results, and a view of it as a third."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r = x * y
        return r, r, r[0]


def publish_all() -> None:
    weft.publish("encoder", torch.jit.script(_encoder))
    weft.publish("plain", _encoder)
    weft.publish("quiet", torch.jit.script(Encoder()), no_grad=True)
    weft.publish("picker", torch.jit.script(Picker()))
    weft.publish("twice", torch.jit.script(Twice()))
    weft.publish("identity", torch.jit.script(nn.Identity()))


def server_gradients(context: int) -> list[Tensor]:
    """Of the published parameters, in the server's context of that id."""
    found = dist_autograd.get_gradients(context)
    return [found[parameter] for parameter in _encoder.parameters()]


class Model(nn.Module):
    """Local layers around two calls of the same module; with `local`, all of it here."""

    def __init__(self, local: nn.Module | None = None, name: str = "plain") -> None:
        super().__init__()
        self.before = nn.Parameter(torch.linspace(-1, 1, 9).reshape(3, 3))
        self.local = local
        self.name = name

    def encode(self, x: Tensor) -> Tensor:
        if self.local is not None:
            return self.local(x)
        return OPS.call_tensors("worker0", self.name, [x], [x[:, :2]])[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(torch.tanh(x @ self.before)) * self.encode(x * 2).sin()


def made(how: str):
    model = Model()
    if how == "compile":
        return model, torch.compile(model, backend="aot_eager", fullgraph=True)
    if how == "export":
        exported = torch.export.export(model, (X,)).module()
        return exported, exported
    return model, model


def gradients(how: str) -> None:
    """Here, at the server and of the input: those of the whole model in one process, to the last bit.

    (Scripted twice, the module's own last bits are TorchScript's affair: it compiles the second run anew.)
    """
    local = Model(Encoder())
    theirs = X.clone().requires_grad_()
    local(theirs).square().sum().backward()
    model, run = made(how)
    for _ in range(2):  # the second time from what was compiled
        mine = X.clone().requires_grad_()
        with dist_autograd.context() as context:
            loss = run(mine).square().sum()
            dist_autograd.backward(context, [loss])
            found = dist_autograd.get_gradients(context)
            there = rpc.rpc_sync("worker0", server_gradients, (context,))
        assert set(found) == {mine, model.before}
        assert torch.equal(found[mine], theirs.grad)
        assert torch.equal(found[model.before], local.before.grad)
        assert local.local is not None
        for one, other in zip(there, local.local.parameters(), strict=True):
            assert torch.equal(one, other.grad)


def several() -> None:
    """Several tensors each way, one of them an index, and one without gradients."""

    def body(x: Tensor, y: Tensor) -> Tensor:
        like = [x, x[:, 0].long(), y]
        first, index, second = OPS.call_tensors("worker0", "picker", [x, y], like)
        return (first * (1 + index[:, None])).sum() + second.sum()

    def plain(x: Tensor, y: Tensor) -> Tensor:
        first, index, second = Picker()(x, y)
        return (first * (1 + index[:, None])).sum() + second.sum()

    for needs in ((True, True), (True, False), (False, True)):
        for run in (body, torch.compile(body, backend="aot_eager", fullgraph=True)):
            here = [X.clone().requires_grad_(needs[0]), X[0].clone().requires_grad_(needs[1])]
            plain(*here).backward()
            mine = [one.detach().requires_grad_(one.requires_grad) for one in here]
            with dist_autograd.context() as context:
                dist_autograd.backward(context, [run(*mine)])
                found = dist_autograd.get_gradients(context)
            for one, other in zip(mine, here, strict=True):
                assert (one in found) == other.requires_grad
                if other.requires_grad:
                    assert torch.equal(found[one], other.grad)


def one_tensor_twice() -> None:
    """As two results of the module, and as two of its arguments."""

    def loss(results: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        first, second, third = results
        return (first * 2).sum() + (second * 3).sum() + third.sum()

    def body(x: Tensor) -> Tensor:
        return loss(OPS.call_tensors("worker0", "twice", [x, x], [x, x, x[0]]))

    theirs = X.clone().requires_grad_()
    loss(Twice()(theirs, theirs)).backward()
    for run in (body, torch.compile(body, backend="aot_eager", fullgraph=True)):
        mine = X.clone().requires_grad_()
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [run(mine)])
            torch.testing.assert_close(dist_autograd.get_gradients(context)[mine], theirs.grad)


def own_memory() -> bool:
    """Whether the results of a module that returns one tensor twice can be changed one by one."""
    first, second, _ = OPS.call_tensors("worker0", "twice", [X, X], [X, X, X[0]])
    before = second.clone()
    first.add_(1)
    return torch.equal(second, before)


def retained() -> None:
    """Backward twice over one graph, as distributed autograd allows."""
    x = X.clone().requires_grad_()
    with dist_autograd.context() as context:
        (y,) = OPS.call_tensors("worker0", "encoder", [x], [x[:, :2]])
        loss = y.sum()
        dist_autograd.backward(context, [loss], retain_graph=True)
        first = dist_autograd.get_gradients(context)[x].clone()
        dist_autograd.backward(context, [loss])
        assert torch.equal(dist_autograd.get_gradients(context)[x], first * 2)


def only_parameters() -> str:
    """No input needs gradients, the module's parameters do: found in eager mode, refused in a graph."""
    body = lambda x: OPS.call_tensors("worker0", "encoder", [x], [x[:, :2]])[0]  # noqa: E731
    local = Encoder()
    local(X).sum().backward()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [body(X).sum()])
        there = rpc.rpc_sync("worker0", server_gradients, (context,))
    for one, other in zip(there, local.parameters(), strict=True):
        assert torch.equal(one, other.grad)
    compiled = torch.compile(body, backend="aot_eager", fullgraph=True)
    compiled(X)  # outside a context nothing is lost
    with dist_autograd.context():
        with torch.no_grad():
            compiled(X)
        try:
            compiled(X)
        except RuntimeError as error:
            return str(error)
    return "it was compiled"


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
        with dist_autograd.context():
            run(X.clone().requires_grad_(backend != "export"))
    assert rpc.rpc_sync("worker0", calls_counted) == before + 6


def left_as_it_is(how: str) -> None:
    """weft.call and weft.RemoteModule under torch.compile: between two graphs, with all gradients."""
    remote = weft.RemoteModule("worker0", Encoder) if how == "module" else None
    model = Model()
    run = lambda x: weft.call("worker0/plain", x) if remote is None else remote(x)  # noqa: E731
    model.encode = run  # type: ignore[method-assign]
    local = Model(Encoder())
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
    assert local.local is not None
    for one, other in zip(there, local.local.parameters(), strict=True):
        assert torch.equal(one, other.grad)


def refusals(how: str) -> list[str]:
    """What goes wrong when the backward is not a distributed one, or comes too late."""
    body = lambda x: OPS.call_tensors("worker0", "encoder", [x], [x[:, :2]])[0].sum()  # noqa: E731
    run = torch.compile(body, backend="aot_eager", fullgraph=True) if how == "compile" else body
    texts = []

    def note(call) -> None:
        try:
            call()
        except RuntimeError as error:
            texts.append(str(error))
        else:
            texts.append("nothing was raised")

    x = X.clone().requires_grad_()
    loss = run(x)  # a result as good as any
    note(loss.backward)
    with dist_autograd.context():
        loss = run(x)
        note(loss.backward)
    with dist_autograd.context():
        loss = run(x)
    with dist_autograd.context() as context:
        note(lambda: dist_autograd.backward(context, [loss]))
    return texts


def checkpointed() -> str:
    x = X.clone().requires_grad_()
    body = lambda x: OPS.call_tensors("worker0", "encoder", [x], [x[:, :2]])[0].square()  # noqa: E731
    with dist_autograd.context() as context:
        y = checkpoint(body, x, use_reentrant=False)
        try:
            dist_autograd.backward(context, [y.sum()])
        except RuntimeError as error:
            return str(error)
    return "it was given"


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


def second_order() -> str:
    x = X.clone().requires_grad_()
    with dist_autograd.context():
        (y,) = OPS.call_tensors("worker0", "encoder", [x], [x[:, :2]])
        try:
            torch.autograd.grad((y * y).sum(), x, create_graph=True)
        except RuntimeError as error:
            return str(error)
    return "it was given"


def no_gradients_there() -> None:
    """A module that records nothing: zeros, where torch's own engine would wait forever."""
    x = X.clone().requires_grad_()
    w = torch.ones(2, 2, requires_grad=True)
    with dist_autograd.context() as context:
        (y,) = OPS.call_tensors("worker0", "quiet", [x], [x[:, :2]])
        dist_autograd.backward(context, [(y * w).sum()])
        found = dist_autograd.get_gradients(context)
        assert torch.equal(found[w], Encoder()(X).detach())
        assert torch.equal(found[x], torch.zeros_like(x)), found[x]


def check() -> None:
    """With gradients; what opcheck runs backward itself for stays with test_operators.py."""
    args = ("worker0", "encoder", [X.clone().requires_grad_()], [torch.empty(2, 2)])
    parts = ("test_schema", "test_autograd_registration", "test_faketensor")
    with dist_autograd.context():
        torch.library.opcheck(OPS.call_tensors.default, args, test_utils=parts)
        recorded = (*args[:2], [X], [0], args[3], "forward", 0, -1.0, False, 0)
        torch.library.opcheck(OPS._call_tensors_recorded.default, recorded, test_utils=parts)
    args = ("worker1", "identity", [X], [X])  # nothing of the input in the output
    torch.library.opcheck(OPS.call_tensors.default, args)


def publish_here() -> None:
    weft.publish("identity", torch.jit.script(nn.Identity()))


def call_what_gives_no_gradients() -> None:
    """Three times: the warning comes once. No backward follows: torch's engine would wait forever."""
    with dist_autograd.context():
        weft.call("worker0/quiet", X)  # nothing is expected of this one
        for _ in range(2):
            weft.call("worker0/quiet", X.clone().requires_grad_())
        weft.call_async("worker0/quiet", X.clone().requires_grad_()).wait()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lost_between() -> str:
    x = X.clone().requires_grad_()
    with dist_autograd.context() as context:
        (y,) = OPS.call_tensors("worker0", "encoder", [x], [x[:, :2]])
        rpc.rpc_async("worker0", die)
        try:
            dist_autograd.backward(context, [y.sum()])
        except RuntimeError as error:
            return str(error)
    return "gradients came from a dead worker"


def leave_now() -> None:
    rpc.shutdown(graceful=False)


@pytest.fixture(scope="module")
def pair():
    with Group(2) as group:
        group[0].call(publish_all)
        group[1].call(publish_here)
        yield group
        group.shutdown()


@pytest.mark.parametrize("how", ["eager", "compile", "export"])
def test_gradients_are_those_of_the_local_model(pair, how):
    pair[1].call(gradients, how, timeout=100)


def test_several_tensors(pair):
    pair[1].call(several, timeout=100)


def test_one_tensor_as_two_results_and_two_arguments(pair):
    pair[1].call(one_tensor_twice, timeout=100)


def test_results_share_no_memory(pair):
    assert pair[1].call(own_memory)


def test_backward_twice(pair):
    pair[1].call(retained)


def test_parameters_are_never_forgotten(pair):
    text = pair[1].call(only_parameters, timeout=100)
    assert "encoder.forward at worker 'worker0' has parameters that need gradients" in text
    assert "x.requires_grad_()" in text


@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "export"])
def test_a_call_whose_result_is_not_used_is_made(pair, backend):
    pair[0].call(publish_counter)
    pair[1].call(unused, backend, timeout=110)


@pytest.mark.parametrize("how", ["call", "module"])
def test_other_calls_are_left_between_graphs(pair, how):
    pair[1].call(left_as_it_is, how, timeout=100)


@pytest.mark.parametrize("how", ["eager", "compile"])
def test_gradients_are_not_dropped_silently(pair, how):
    unrecorded, local, ended = pair[1].call(refusals, how, timeout=100)
    assert "that call was not recorded" in unrecorded
    assert "loss.backward() stays in this process" in local
    assert "had ended" in ended
    for text in (unrecorded, local, ended):
        assert "encoder.forward at worker 'worker0'" in text


def test_a_checkpointed_call_says_so(pair):
    text = pair[1].call(checkpointed)
    assert "made anew within a backward, as torch.utils.checkpoint does" in text
    assert "use weft.call there" in text


def test_there_are_no_forward_mode_gradients(pair):
    texts = pair[1].call(forward_mode)
    assert len(texts) == 5
    for text in texts:
        assert "has a forward-mode gradient" in text
        assert "worker 'worker0'" in text


def test_there_is_no_second_derivative(pair):
    assert "gradients of gradients" in pair[1].call(second_order)


def test_a_module_without_gradients_keeps_nobody_waiting(pair):
    pair[1].call(no_gradients_there)


def test_it_is_a_good_operator_with_gradients(pair):
    pair[1].call(check, timeout=100)


def test_a_call_that_would_stop_backward_is_warned_of():
    with Group(2) as group:
        group[0].call(publish_all)
        group[1].call(call_what_gives_no_gradients)
        text = "the result of quiet.forward at worker 'worker0' needs no gradients"
        assert group[1].output().count(text) == 1
        group.shutdown()


def test_a_worker_lost_before_backward_is_named():
    with Group(2) as group:
        group[0].call(publish_all)
        text = group[1].call(lost_between)
        assert ("worker0" in text and "is lost" in text) or "cannot be reached" in text
        group[1].call(leave_now)
