"""torch.ops.weft: scripting, saving, freezing, compiling."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from typing import Any

import pytest
import torch
from named_models import Scores
from published_models import Asker, Client, Echo, Encoder, Typed, Unsendable, Wrong
from waiting import wait_for
from workers import Group

import weft

X = torch.arange(6.0).reshape(2, 3)

# What workers run.


def publish_both() -> None:
    weft.publish("encoder", torch.jit.script(Encoder()))
    weft.publish("echo", torch.jit.script(Echo()))
    weft.publish("scores", torch.jit.script(scores))
    weft.publish("asker", torch.jit.script(Asker()))


def save(path: str) -> None:
    torch.jit.script(Client()).save(path)


def run_saved(path: str, how: str = "load"):
    model = torch.jit.load(path).eval()
    if how == "freeze":
        model = torch.jit.freeze(model)
    elif how == "optimize":
        model = torch.jit.optimize_for_inference(model)
    return model(X)


def run_typed(path: str):
    torch.jit.script(Typed()).save(path)
    return torch.jit.load(path)(X)


def run_wrong():
    return torch.jit.script(Wrong())(X)


def membership():
    ops = torch.ops.weft
    return ops.in_group(), ops.worker_name(), ops.rank(), ops.rank("worker0"), ops.workers()


def membership_is_not_folded() -> bool:
    return "weft::worker_name" in str(torch.jit.freeze(torch.jit.script(_Who()).eval()).graph)


class _Who(torch.nn.Module):
    def forward(self) -> str:
        return torch.ops.weft.worker_name()


def drop_scripted() -> str:
    @torch.jit.script
    def keep_and_drop(x: torch.Tensor) -> str:
        like: list[torch.Tensor] = []
        args: list[Any] = [x]
        there = torch.ops.weft.remote("worker0", "encoder", args, like)
        torch.ops.weft.fetch(there)
        owner = torch.ops.weft.owner(there)
        torch.ops.weft.drop(there)
        return owner

    return keep_and_drop(X)


def scores(x: torch.Tensor) -> Scores:
    return Scores(x, [3])


def fetch_scripted() -> tuple[Any, Any, list[int], torch.Tensor]:
    @torch.jit.script
    def fetch(x: torch.Tensor) -> tuple[Scores, Scores, list[int], torch.Tensor]:
        like: list[Scores] = []
        args: list[Any] = [x]
        there = torch.ops.weft.remote("worker0", "scores", args, like)
        now = torch.ops.weft.fetch(there)
        later = torch.jit._wait(torch.ops.weft.fetch_async(there))
        return now, later, now.best, later.values

    return fetch(X)


def check_op(mode: str) -> None:
    arguments = ("worker0", "encoder", [X], [torch.empty(2, 2)])
    op = torch.ops.weft.call_tensors.default
    if mode == "opcheck":
        torch.library.opcheck(op, arguments)
        return
    local = Encoder()(X).detach()

    def body(x):
        (y,) = torch.ops.weft.call_tensors("worker0", "encoder", [x + 0], [x[:, :2]])
        return y * 2

    if mode == "compile":
        with torch.no_grad():
            got = torch.compile(body, backend="aot_eager", fullgraph=True)(X)
    else:
        module = type("M", (torch.nn.Module,), {"forward": lambda self, x: body(x)})()
        with torch.no_grad():
            got = torch.export.export(module, (X,)).module()(X)
    assert torch.equal(got.detach(), local * 2)


def wrong_like() -> None:
    torch.ops.weft.call_tensors("worker0", "encoder", [X], [torch.empty(2, 5)])


@pytest.fixture(scope="module")
def pair():
    with Group(2) as group:
        group[0].call(publish_both)
        yield group
        group.shutdown()


@pytest.mark.parametrize("how", ["load", "freeze", "optimize"])
def test_a_saved_model_calls_what_is_published(pair, tmp_path, how):
    path = str(tmp_path / "client.pt")
    pair[0].call(save, path)  # by one process, loaded by the other
    local = Encoder()(X).detach()
    now, later, there, rows = pair[1].call(run_saved, path, how)
    assert rows == 2
    for value in (now, later, there):
        assert torch.equal(value.detach(), local)


def test_typed_results_and_names(pair, tmp_path):
    nested, flag = pair[1].call(run_typed, str(tmp_path / "typed.pt"))
    assert torch.equal(nested["a"][1], X + 1)
    assert flag == (True, "b")


def test_another_type_than_expected_is_an_error(pair):
    error = pair[1].fails(run_wrong)
    assert "the result must be float, got Tensor" in error.message


def send_scripted(what: str) -> Any:
    return torch.jit.script(Unsendable()).sends(what)


@pytest.mark.parametrize(("what", "position"), [("enum", 0), ("list", 0), ("object", 1)])
def test_enums_and_objects_stay_here(pair, what, position):
    error = pair[1].fails(send_scripted, what)
    assert f"argument {position} has an object of a TorchScript class" in error.message
    assert "calling encoder.forward at worker 'worker0'" in error.message


def test_membership(pair):
    names = ["worker0", "worker1"]
    assert pair[1].call(membership) == (True, "worker1", 1, 0, names)
    assert pair[1].call(membership_is_not_folded)


def test_values_are_kept_and_dropped(pair):
    assert pair[1].call(drop_scripted) == "worker0"


def test_fetched_named_tuples_are_plain(pair):
    now, later, best, values = pair[1].call(fetch_scripted)
    assert (type(now), type(later), best) == (tuple, tuple, [3])
    assert torch.equal(values, X)


def ask(method: str, seconds: float = 20):
    return weft.call("worker0/asker", method=method, timeout=seconds)


def served_calls() -> int:
    from torch.distributed import rpc

    return int(rpc.api._get_current_rpc_agent().get_debug_info()["agent.server_active_calls"])


def ask_and_be_interrupted(method: str) -> str:
    try:
        ask(method, seconds=0)
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "it ended"


def ask_in_vain(method: str, seconds: float) -> None:
    with contextlib.suppress(RuntimeError):  # the answer may come just before the timeout
        ask(method, seconds)


def test_scripted_code_sees_its_deadline(pair):
    left, cancelled = pair[1].call(ask, "forward")
    assert 0 < left <= 20.001
    assert not cancelled
    assert pair[1].call(ask, "forward", seconds=0) == (None, False)
    assert torch.ops.weft.deadline() is None
    assert torch.ops.weft.cancelled() is False


def test_scripted_code_sees_that_nobody_waits(pair):
    pair[1].call(ask_in_vain, "until_cancelled", seconds=0.2)
    wait_for(lambda: pair[1].call(ask, "ended"), True, "the call ends by itself", 20)


def test_ctrl_c_cancels(pair):
    pair[1].start(ask_and_be_interrupted, "until_cancelled")
    running = lambda: pair[0].call(served_calls)  # noqa: E731
    wait_for(running, 1, "calls that run")
    pair[1].signal(signal.SIGINT)
    assert pair[1].result() == "KeyboardInterrupt"
    wait_for(running, 0, "calls that run")


@pytest.mark.parametrize("mode", ["opcheck", "compile", "export"])
def test_the_tensor_call_is_a_good_operator(pair, mode):
    pair[1].call(check_op, mode, timeout=100)


def test_like_must_be_like_it(pair):
    error = pair[1].fails(wrong_like)
    assert "`like` says" in error.message


# A process that never imports the Python package.
BARE = """
import sys, torch
torch.ops.load_library(sys.argv[1])
model = torch.jit.load(sys.argv[2])
assert not any(name.split(".")[0] == "weft" for name in sys.modules), "weft was imported"
assert torch.ops.weft.in_group() is False
try:
    model(torch.ones(1, 3))
except RuntimeError as error:
    assert "in no RPC group" in str(error), error
    print("as it should")
"""


def test_the_library_loads_without_the_package(tmp_path):
    path = str(tmp_path / "client.pt")
    torch.jit.script(Client()).save(path)
    done = subprocess.run(
        [sys.executable, "-c", BARE, weft.library_path(), path],
        env={"PATH": "/usr/bin:/bin", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stdout == "as it should\n", done.stderr
