"""Publishing and calling from Python: versions, values, policies, gradients, loss."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import NamedTuple

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from named_models import Report, Scores
from published_models import Color, Echo, Encoder, Hooked, Unsendable
from workers import Group

import weft
from weft._remote.named_tuples import named

X = torch.arange(6.0).reshape(2, 3)

# What workers run.

_inside = threading.Barrier(2)


def publish_encoder(seed: int = 0, **options) -> int:
    return weft.publish("encoder", torch.jit.script(Encoder(seed)), **options)


def publish_plain(methods: tuple[str, ...] = ()) -> int:
    return weft.publish("plain", Encoder(), methods=methods)


def publish_echo() -> int:
    return weft.publish("echo", torch.jit.script(Echo()))


def publish_hooked() -> None:
    weft.publish("hooked", torch.jit.script(Hooked()))
    weft.publish("hooked-quiet", torch.jit.script(Hooked()), no_grad=True)
    batch = weft.Batch(max_requests=2, max_delay=0.001)
    weft.publish("hooked-batched", torch.jit.script(Hooked()), batch=batch)


def publish_functions() -> None:
    def meet() -> int:
        return _inside.wait(20)

    def die() -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def bad() -> object:
        return object()

    def fails(x: int) -> int:
        raise KeyError(f"no {x}")

    def given(x: object) -> object:
        return x

    def hollow(kind: str) -> object:
        return hollow_value(kind)

    def referred(x: torch.Tensor) -> object:
        return rpc.RRef(x)

    @torch.jit.script
    def fetched(x: rpc.RRef[torch.Tensor]) -> torch.Tensor:
        return x.to_here() * 2

    for function in (meet, die, bad, fails, given, hollow, referred):
        weft.publish(function.__name__, function)
    weft.publish("fetched", fetched)


def hollow_value(kind: str) -> object:
    """What cannot be sent: tensors without their elements, values without an end."""
    if kind == "freed":
        freed = torch.ones(4)
        freed.untyped_storage().resize_(0)
        return freed
    if kind == "fake":
        from torch._subclasses import FakeTensorMode

        with FakeTensorMode():
            return torch.empty(3, 3)
    if kind == "wrapped":
        from torch.masked import masked_tensor

        return masked_tensor(torch.ones(2), torch.tensor([True, False]))
    value: list = []
    if kind == "itself":
        value.append(value)
    for _ in range(100_000 if kind == "deep" else 0):
        value = [value]
    return value


def ask_with_hollow(kind: str) -> object:
    return weft.call("worker0/given", hollow_value(kind))


def deep_there_and_back(depth: int) -> int:
    value: list = []
    for _ in range(depth):
        value = [value]
    back = weft.call("worker0/given", value)
    for _ in range(depth):
        (back,) = back
    return len(back)


def references_travel() -> None:
    own = rpc.RRef(X)
    there = weft.call("worker0/referred", X)
    assert (own.owner_name(), there.owner_name()) == ("worker1", "worker0")
    back = weft.call("worker0/given", {"own": [own], "there": (there, 1)})
    for one in (there, back["own"][0], back["there"][0]):
        assert torch.equal(one.to_here(), X)
    for one in (own, there, weft.call_remote("worker0/encoder", X)):
        assert torch.equal(weft.call("worker0/fetched", one), one.to_here() * 2)
    for value in (rpc.RRef(object()), [rpc.RRef(object())]):
        with pytest.raises(TypeError, match="argument 0 holds an RRef of a Python object"):
            weft.call("worker0/given", value)


def publish_late(name: str, seconds: float) -> None:
    def answer() -> int:
        return 42

    threading.Timer(seconds, weft.publish, (name, answer)).start()


def wait_and_call(name: str) -> int:
    assert weft.wait_published(f"worker0/{name}", timeout=30).name == name
    return weft.call(f"worker0/{name}")


def wait_in_vain(target: str) -> str:
    with pytest.raises(TimeoutError) as raised:
        weft.wait_published(target, timeout=0.05)
    return str(raised.value)


def take_back(name: str, version: int | None = None) -> None:
    weft.unpublish(name, version)


def listed(worker: str | None = None) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(one.name, one.version, one.methods) for one in weft.published(worker)]


def ask(target: str, *args, **options):
    return weft.call(target, *args, **options)


def ask_async(target: str, count: int, *args) -> list:
    futures = [weft.call_async(target, *args) for _ in range(count)]
    return [future.wait() for future in futures]


def ask_remote(target: str, *args):
    rref = weft.call_remote(target, *args)
    return rref.owner_name(), rref.to_here()


def plain_rpc() -> None:
    rpc.rpc_sync("worker0", os.getpid)


def gradients(target: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the input, through the published module and through the same module here."""
    mine = X.clone().requires_grad_()
    with dist_autograd.context() as context:
        loss = (weft.call(target, mine) ** 2).sum()
        dist_autograd.backward(context, [loss])
        through = dist_autograd.get_gradients(context)[mine]
    local = X.clone().requires_grad_()
    (Encoder()(local) ** 2).sum().backward()
    return through, local.grad


def local(scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    return Encoder(seed)(X, scale).detach()


@pytest.fixture(scope="module")
def pair():
    with Group(2) as group:
        group[0].call(publish_encoder)
        group[0].call(publish_plain, ("rows",))
        group[0].call(publish_echo)
        group[0].call(publish_functions)
        yield group
        group.shutdown()


@pytest.mark.parametrize("name", ["encoder", "plain"])
def test_a_published_module_gives_what_the_local_one_gives(pair, name):
    target = f"worker0/{name}"
    assert torch.equal(pair[1].call(ask, target, X).detach(), local())
    assert torch.equal(pair[1].call(ask, target, X, 2.0).detach(), local(2.0))
    assert torch.equal(pair[1].call(ask, target, X, kwargs={"scale": 3.0}).detach(), local(3.0))
    assert pair[1].call(ask, target, X, method="rows") == 2
    owner, value = pair[1].call(ask_remote, target, X)
    assert (owner, torch.equal(value.detach(), local())) == ("worker0", True)
    for value in pair[1].call(ask_async, target, 20, X):
        assert torch.equal(value.detach(), local())


def test_one_may_wait_for_what_is_not_published_yet(pair):
    pair[0].call(publish_late, "late", 0.3)
    assert pair[1].call(wait_and_call, "late") == 42
    for target in ("worker0/never", "worker0/late@9"):
        assert f"{target} was not published within 0.05 s" in pair[1].call(wait_in_vain, target)


def test_scripted_hooks_run(pair):
    pair[0].call(publish_hooked)
    for name in ("hooked", "hooked-quiet", "hooked-batched"):
        assert torch.equal(pair[1].call(ask, f"worker0/{name}", X), X * 2 + 11)
    assert torch.equal(pair[1].call(ask, "worker0/hooked", X, method="plain"), X)
    for name in ("hooked", "hooked-quiet", "hooked-batched"):
        pair[0].call(take_back, name)


def test_a_method_may_return_a_future(pair):
    assert torch.equal(pair[1].call(ask, "worker0/encoder", X, method="later").detach(), local())


def test_a_worker_calls_itself(pair):
    assert torch.equal(pair[0].call(ask, "worker0/encoder", X).detach(), local())


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("optional", None, None),
        ("floats", [1, 2], [1.0, 2.0]),
        ("floats", [], []),
        ("floats", (1.5,), [1.5]),
        ("pair", (1, None), (1, None)),
        ("pair", (1, "x"), (1, "x")),
        ("nested", {}, {}),
        ("union", [1, 2], "ints"),
        ("union", [1.5, 2.0], "floats"),
        ("union", [1, 2.5], "floats"),
        ("anything", [1, 2], "ints"),
        ("anything", {"a": [1.5], "b": [2.0]}, "floats by name"),
        ("anything", [1, "a"], "another"),
    ],
)
def test_values_take_the_types_of_the_signature(pair, method, value, expected):
    assert pair[1].call(ask, "worker0/echo", value, method=method) == expected


def scores(x: torch.Tensor, best: list[int]) -> Scores:
    return Scores(x, best)


def scores_in_containers(
    x: torch.Tensor,
) -> tuple[Report, dict[str, list[Scores]], Scores | None, Scores | None, int]:
    one = Scores(x, [1])
    return Report(one, [one, Scores(x * 2, [2])]), {"a": [one]}, one, None, 3


def publish_scores() -> None:
    class Hidden(NamedTuple):
        x: torch.Tensor
        n: int

    def hidden(x: torch.Tensor) -> Hidden:
        return Hidden(x, 4)

    hidden.__annotations__["return"] = Hidden  # text of a name that only this function has
    for function in (scores, scores_in_containers):
        weft.publish(function.__name__, torch.jit.script(function))
        weft.publish(f"plain_{function.__name__}", function)
    weft.publish("hidden", hidden)


def ask_scores(prefix: str) -> None:
    """What comes has the names that the annotations say, at any depth; else the values are the same."""
    target = f"worker0/{prefix}scores"
    for result in (weft.call(target, X, [3]), weft.call_async(target, X, [3]).wait()):
        assert type(result) is Scores
        assert torch.equal(result.values, X)
        assert result.best == [3]
    plain = weft.call_remote(target, X, [3]).to_here()
    assert (type(plain), plain[1]) == (tuple, [3])

    report, lists, some, none, number = weft.call(f"worker0/{prefix}scores_in_containers", X)
    assert (type(report), type(report.best), type(lists["a"][0])) == (Report, Scores, Scores)
    assert torch.equal(report.all[1].values, X * 2)
    assert isinstance(some, Scores)
    assert (none, number) == (None, 3)


def ask_for_gradients_by_name() -> torch.Tensor:
    x = X.clone().requires_grad_()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [weft.call("worker0/scores", x, [3]).values.sum()])
        return dist_autograd.get_gradients(context)[x]


def describe_hidden() -> tuple[str, tuple[str, ...], int]:
    result = weft.call("worker0/hidden", X)
    return type(result).__name__, type(result)._fields, result.n


def test_named_tuples_keep_their_names(pair):
    pair[0].call(publish_scores)
    for prefix in ("", "plain_"):
        pair[1].call(ask_scores, prefix)
        pair[0].call(ask_scores, prefix)  # of itself
    assert torch.equal(pair[1].call(ask_for_gradients_by_name), torch.ones_like(X))
    assert pair[1].call(describe_hidden) == ("Hidden", ("x", "n"), 4)


@pytest.mark.parametrize(
    "names",
    [
        "nonsense",
        "3",
        '["set", null]',
        '["list", ["tuple", "__torch__.a.B", ["x"], [null]]]',
        '["tuple", "__torch__.a.B", ["not a name"], [null]]',
        '["tuple", "B", ["x", "y"], [null]]',
    ],
)
def test_names_that_do_not_fit_leave_the_value(names):
    assert named(names, (1, 2)) == (1, 2)


def test_tensors_in_containers(pair):
    back = pair[1].call(ask, "worker0/echo", {"a": [X, X + 1]}, method="nested")
    assert list(back) == ["a"]
    assert torch.equal(back["a"][1], X + 1)


def test_references_travel(pair):
    pair[1].call(references_travel)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("worker0/encodr", X), {}, "'encodr' is not published here; published are: bad version"),
        (("worker0/encoder@7", X), {}, "'encoder' version 7 is not published here"),
        (("worker0/encoder", X), {"method": "decode"}, "has no method 'decode'; it has: forward("),
        (("worker0/encoder", 3), {}, "argument 'x' must be Tensor, got int"),
        (("worker0/encoder",), {}, "argument 'x' is missing"),
        (("worker0/encoder", X), {"kwargs": {"by": 2}}, "has no argument 'by'"),
        (("worker0/encoder", X.long()), {}, "dtype"),
        (("worker0/echo", X), {"method": "fails"}, "the module says no"),
        (("worker0/fails", 3), {}, "no 3"),
        (("worker0/bad",), {}, "holds a 'object', which TorchScript does not know"),
        (("worker0/given", [X]), {"kwargs": {"x": 1}}, "multiple values"),
        (("worker9/encoder", X), {}, "could not find destination worker 'worker9'"),
    ],
)
def test_what_is_wrong_is_said(pair, arguments, options, text):
    error = pair[1].fails(ask, *arguments, **options)
    assert error.kind == "RuntimeError"
    assert text in error.message
    if "worker9" not in text:
        assert f"at worker '{arguments[0].split('/')[0]}')" in error.message


@pytest.mark.parametrize(
    ("value", "text"), [(2**63, "does not fit in 64 bits"), ("\ud800", "lone surrogate")]
)
def test_values_that_torchscript_lacks_are_named(pair, value, text):
    error = pair[1].fails(ask, "worker0/echo", value)
    assert error.kind == "ValueError" and text in error.message


@pytest.mark.parametrize(
    "target",
    [
        "encoder",
        "/encoder",
        "worker0/",
        "worker0/encoder@x",
        "worker0/encoder@²",
        "worker0/encoder@" + "9" * 19,
        "worker0/encoder@" + "9" * 5000,
    ],
)
def test_a_bad_target_shows_a_good_one(pair, target):
    error = pair[1].fails(ask, target, X)
    assert error.kind == "ValueError"
    assert '"worker/name"' in error.message


@pytest.mark.parametrize("value", [{1, 2}, b"text", [b"text"], Color.RED, [Color.RED]])
def test_values_that_torchscript_does_not_know_stay_here(pair, value):
    error = pair[1].fails(ask, "worker0/encoder", value)
    assert error.kind == "TypeError"
    kind = type(value[0] if isinstance(value, list) else value).__name__
    assert f"argument 0 holds a '{kind}'" in error.message


def publish_unsendable() -> None:
    def color():
        return {"a": [Color.RED]}

    weft.publish("unsendable", torch.jit.script(Unsendable()))
    weft.publish("color", color)


def test_keys_of_two_types_stay_here(pair):
    error = pair[1].fails(ask, "worker0/given", {"a": 1, 5: 2})
    assert error.kind == "TypeError"
    assert "argument 0 holds a dict with keys of two types, str and int" in error.message
    error = pair[1].fails(ask, "worker0/given", kwargs={3: 1})
    assert error.kind == "TypeError" and "names of arguments must be strings" in error.message


def by_names(names: list[str]) -> str:
    try:
        torch.ops.weft.call("worker0", "given", [1, 2], names=names)
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def test_names_of_arguments_are_checked_for_python_code_too(pair):
    assert "an argument is given twice by its name" in pair[1].call(by_names, ["x", "x"])
    assert "3 names for 2 arguments" in pair[1].call(by_names, ["x", "y", "z"])


def test_enums_and_objects_do_not_come_back(pair):
    pair[0].call(publish_unsendable)
    for method in ("forward", "listed", "later", "place"):
        error = pair[1].fails(ask, "worker0/unsendable", X, method=method)
        assert "member of an enum, which torch cannot send" in error.message
        assert f"calling unsendable.{method} at worker 'worker0'" in error.message
    assert "holds a 'Color'" in pair[1].fails(ask, "worker0/color").message


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("freed", "bytes that its elements need"),
        ("fake", "bytes that its elements need"),
        ("wrapped", "bytes that its elements need"),
        ("itself", "lists, tuples and dicts deep, or holds itself"),
        ("deep", "lists, tuples and dicts deep, or holds itself"),
    ],
)
def test_hollow_and_endless_values_fail_their_call_only(pair, kind, text):
    assert text in pair[1].fails(ask_with_hollow, kind).message
    assert text in pair[1].fails(ask, "worker0/hollow", kind).message
    assert torch.equal(pair[1].call(ask, "worker0/encoder", X).detach(), local())


def test_deep_values_travel(pair):
    assert pair[1].call(deep_there_and_back, 190) == 0


def test_calls_run_side_by_side(pair):
    """Two calls wait for each other inside the server: they end only if both are there at once."""
    assert sorted(pair[1].call(ask_async, "worker0/meet", 2)) == [0, 1]


def test_gradients_equal_those_of_the_local_module(pair):
    for target in ("worker0/encoder", "worker0/plain"):
        through, here = pair[1].call(gradients, target)
        assert torch.equal(through, here)


def test_versions(pair):
    assert pair[0].call(publish_encoder, 5) == 2
    assert torch.equal(pair[1].call(ask, "worker0/encoder", X).detach(), local(seed=5))
    assert torch.equal(pair[1].call(ask, "worker0/encoder@1", X).detach(), local())
    rows = [row[:2] for row in pair[1].call(listed, "worker0") if row[0] == "encoder"]
    assert rows == [("encoder", 1), ("encoder", 2)]
    pair[0].call(take_back, "encoder", 2)
    assert torch.equal(pair[1].call(ask, "worker0/encoder", X).detach(), local())
    assert pair[0].call(publish_encoder, 5) == 3
    pair[0].call(take_back, "encoder", 3)
    error = pair[0].fails(take_back, "nothing")
    assert "'nothing' is not published here" in error.message


def test_the_list_has_signatures(pair):
    rows = {row[0]: row[2] for row in pair[1].call(listed, "worker0")}
    assert "forward(Tensor x, float scale=1.) -> Tensor" in rows["encoder"]
    assert any(method.startswith("forward(x") for method in rows["plain"])
    assert pair[1].call(listed) == []


def test_no_grad_and_batches(pair):
    for name, options in (
        ("quiet", {"no_grad": True}),
        ("batched", {"batch": weft.Batch(max_requests=4, max_delay=0.001)}),
    ):
        pair[0].call(publish_as, name, options)
    for value in pair[1].call(ask_async, "worker0/batched", 12, X):
        assert torch.allclose(value, local())
        assert not value.requires_grad
    assert not pair[1].call(ask, "worker0/quiet", X).requires_grad
    assert not pair[1].call(ask, "worker0/quiet", method="weight_later").requires_grad
    assert "dimension for rows" in pair[1].fails(ask, "worker0/batched", torch.tensor(1.0)).message
    for name in ("quiet", "batched"):
        pair[0].call(take_back, name)


def publish_as(name: str, options: dict) -> int:
    class Forward(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Encoder()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

        def weight(self) -> torch.Tensor:
            return self.inner.first

        @torch.jit.export
        def weight_later(self) -> torch.jit.Future[torch.Tensor]:
            return torch.jit.fork(self.weight)

    return weft.publish(name, torch.jit.script(Forward()), **options)


@torch.jit.script
def scripted_twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_options_that_would_do_nothing_are_refused():
    with pytest.raises(TypeError, match="no_grad is for scripted modules"):
        weft.publish("x", scripted_twice, no_grad=True)
    for module in (scripted_twice, torch.jit.script(Echo()), publish_functions):
        with pytest.raises(TypeError, match="methods names further methods of a plain module"):
            weft.publish("x", module, methods=["nope"])
    assert weft.published() == []


def test_publishing_checks_what_it_gets():
    with pytest.raises(RuntimeError, match="cannot be a published name"):
        publish_as("a/b", {})
    with pytest.raises(TypeError, match=r"torch\.jit\.script first"):
        weft.publish("x", Encoder(), no_grad=True)
    with pytest.raises(TypeError, match="a module or a function"):
        weft.publish("x", 3)
    with pytest.raises(RuntimeError, match="can be batched"):
        publish_encoder(batch=weft.Batch())
    for number, error in ((2**63, ValueError), (0, ValueError), ("2", TypeError)):
        with pytest.raises(error, match="version must be"):
            weft.publish("x", Encoder(), version=number)
        with pytest.raises(error, match="max_requests must be"):
            weft.Batch(max_requests=number)
    with pytest.raises(TypeError, match=r"batch must be a weft\.Batch, got 3"):
        weft.publish("x", torch.jit.script(Echo()), batch=3)
    with pytest.raises(TypeError, match="methods must be names of methods"):
        weft.publish("x", Encoder(), methods="forward")
    with pytest.raises(ValueError, match="max_delay must be at most 3600 s"):
        weft.Batch(max_delay=1e300)
    assert weft.published() == []


def test_without_a_group_the_error_says_so():
    with pytest.raises(RuntimeError, match="in no RPC group"):
        weft.call("worker0/encoder", X)


def test_policy_script_serves_what_is_published_and_no_python():
    with Group(2, per_rank=[{"request_policy": "script"}, {}]) as group:
        group[0].call(publish_encoder)
        group[0].call(publish_plain)
        for name in ("encoder", "plain"):
            assert torch.equal(group[1].call(ask, f"worker0/{name}", X).detach(), local())
        assert torch.equal(*group[1].call(gradients, "worker0/encoder"))
        error = group[1].fails(plain_rpc)
        assert 'the request policy here is "script"' in error.message
        group.shutdown()


def test_a_worker_lost_in_a_call_ends_it():
    with Group(2) as group:
        group[0].call(publish_functions)
        started = time.monotonic()
        error = group[1].fails(ask, "worker0/die")
        assert "worker0" in error.message
        assert "(calling die.forward at worker 'worker0')" in error.message
        assert time.monotonic() - started < 30  # not the call's timeout of 60 s
        group[1].call(leave_now)


def leave_now() -> None:
    rpc.shutdown(graceful=False)
