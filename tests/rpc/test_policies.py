"""Request policies: what peers may ask of a process, and that what is refused had no effect."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from workers import Group, Workers, join

SCRIPT_REASON = 'the request policy here is "script"'
_scripted: dict = {}
SCRIPTED = """
from torch import Tensor

def twice(x: Tensor, times: int) -> Tensor:
    return x * times

def refuse(x: Tensor) -> Tensor:
    raise ValueError("scripted refusal")
    return x
"""


class Bomb:
    """Unpickling it calls a function: proof, by a file, that somebody unpickled."""

    def __init__(self, how: str, marker: str) -> None:
        self.how, self.marker = how, marker

    def __reduce__(self):
        if self.how == "system":
            return os.system, (f"touch {self.marker}",)
        if self.how == "mkdir":
            return os.mkdir, (self.marker,)
        if self.how == "getattr":
            return getattr, (shout, "__globals__")
        if self.how == "eval":
            return eval, (f"open({self.marker!r}, 'w')",)
        if self.how == "path":
            return Path, (self.marker,)
        raise AssertionError(self.how)


# What workers run.


def plain(value):
    return value


def shout(text: str) -> str:
    return text.upper()


def fail(text: str) -> None:
    raise ValueError(text)


def make_tensor(numel: int):
    import torch

    return {
        "ones": torch.ones(numel),
        "size": torch.Size([numel]),
        "constants": [torch.float16, torch.strided, torch.channels_last],
    }


def compile_script() -> None:
    """The same TorchScript functions on every worker, under the same names."""
    import importlib.util

    import torch

    path = Path(os.environ["TEST_SCRATCH"]) / f"scripted_{os.getpid()}.py"
    path.write_text(SCRIPTED)
    spec = importlib.util.spec_from_file_location("scripted_functions", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _scripted["twice"] = torch.jit.script(module.twice)
    _scripted["refuse"] = torch.jit.script(module.refuse)


def how_it_ends(way: str, function: str, *arguments) -> str:
    """Calls worker1 in this way; the answer or the error, as text."""
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    call = globals()[function]
    try:
        if way == "sync":
            return repr(rpc.rpc_sync("worker1", call, args=arguments))
        if way == "async":
            return repr(rpc.rpc_async("worker1", call, args=arguments).wait())
        if way == "remote":
            return repr(rpc.remote("worker1", call, args=arguments).to_here())
        if way == "autograd":
            with dist_autograd.context():
                value = torch.ones(3, requires_grad=True)
                return repr(rpc.rpc_sync("worker1", call, args=(value, *arguments[1:])))
        if way == "profiler":
            with torch.autograd.profiler.profile():
                return repr(rpc.rpc_sync("worker1", call, args=arguments))
        if way == "both":
            with torch.autograd.profiler.profile(), dist_autograd.context():
                value = torch.ones(3, requires_grad=True)
                return repr(rpc.rpc_sync("worker1", call, args=(value, *arguments[1:])))
        raise AssertionError(way)
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    except ValueError as error:
        return f"ValueError: {error}"


def throw_bomb(how: str, marker: str, function: str = "plain") -> str:
    return how_it_ends("sync", function, Bomb(how, marker))


def scripted_calls() -> None:
    """Built-in operators and TorchScript, in every way there is to call them."""
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    twice, x = _scripted["twice"], torch.arange(6.0).view(2, 3)
    assert torch.equal(rpc.rpc_sync("worker1", torch.mul, args=(x, 3)), x * 3)
    assert torch.equal(rpc.rpc_sync("worker1", twice, args=(x, 2)), x * 2)
    assert torch.equal(
        rpc.rpc_async("worker1", twice, args=(x,), kwargs={"times": 5}).wait(), x * 5
    )
    assert torch.equal(rpc.remote("worker1", twice, args=(x, 2)).to_here(), x * 2)
    assert torch.equal(rpc.remote("worker1", torch.add, args=(x, 2)).to_here(), x + 2)
    with torch.autograd.profiler.profile() as profile:
        assert torch.equal(rpc.rpc_sync("worker1", twice, args=(x, 2)), x * 2)
        assert torch.equal(rpc.rpc_sync("worker1", torch.add, args=(x, 2)), x + 2)
    assert any("twice" in event.name for event in profile.function_events)
    with dist_autograd.context() as context:
        leaf = x.clone().requires_grad_()
        loss = rpc.rpc_sync(
            "worker1", twice, args=(rpc.rpc_sync("worker1", torch.mul, (leaf, leaf)), 3)
        )
        dist_autograd.backward(context, [loss.sum()])
        assert torch.equal(dist_autograd.get_gradients(context)[leaf], 6 * x)
    try:
        rpc.rpc_sync("worker1", _scripted["refuse"], args=(x,))
    except Exception as error:
        assert "scripted refusal" in str(error)
    else:
        raise AssertionError("the scripted exception did not travel")


def debug(key: str) -> int:
    import torch.distributed.rpc as rpc

    return int(rpc.api._get_current_rpc_agent().get_debug_info()[key])


def is_initialised() -> bool:
    import torch.distributed.rpc as rpc

    return rpc.api._is_current_rpc_agent_set()


def register(*names: str) -> list[str]:
    import weft

    for name in names:
        weft.register_function(globals()[name])
    return weft.registered_functions()


# script


@pytest.fixture
def script_group(tmp_path):
    # worker0 asks, worker1 serves scripts only.
    environment = {"TEST_SCRATCH": str(tmp_path)}
    per_rank = [{}, {"request_policy": "script"}]
    with Group(2, environment, per_rank=per_rank) as group:
        for worker in group:
            worker.call(compile_script)
        yield group
        group.shutdown()


def test_script_refuses_python_in_every_wrapping(script_group):
    ways = ("sync", "async", "remote", "autograd", "profiler", "both")
    for way in ways:
        text = script_group[0].call(how_it_ends, way, "plain", 5)
        assert text.startswith("RuntimeError"), (way, text)
        assert SCRIPT_REASON in text, (way, text)
        assert "worker 'worker1' (rank 1) refuses the request" in text, (way, text)
    assert script_group[1].call(debug, "agent.requests_refused") >= len(ways)
    script_group[0].call(scripted_calls)


def refused_with_rrefs(elsewhere: str) -> str:
    """Passes an RRef of our own and one of somebody else's to one who will not read them."""
    import torch
    import torch.distributed.rpc as rpc

    own = rpc.RRef(torch.ones(2))
    other = rpc.remote(elsewhere, torch.add, args=(torch.ones(2), 1))
    other.to_here()
    try:
        rpc.rpc_sync("worker1", plain, args=([own, other],))
    except RuntimeError as error:
        return str(error)
    return "answered"


def test_rrefs_in_a_refused_request_do_not_hold_up_shutdown(tmp_path):
    """PyTorch alone would wait 100 s for news of them."""
    with Group(3, per_rank=[{}, {"request_policy": "script"}, {}]) as group:
        assert "refuses the request" in group[0].call(refused_with_rrefs, "worker2")
        group.shutdown(timeout=15)


def test_script_serves_torchscript_and_operators(script_group):
    script_group[0].call(scripted_calls)
    assert script_group[1].call(debug, "agent.requests_refused") == 0


def many_passes(passes: int) -> float:
    """Gradients of one call, taken again as soon as they have been taken."""
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    x = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        loss = rpc.rpc_sync("worker1", torch.mul, args=(x, 3)).sum()
        for _ in range(passes):
            dist_autograd.backward(context, [loss], retain_graph=True)
        return dist_autograd.get_gradients(context)[x][0].item()


def test_one_backward_pass_after_the_other(script_group):
    assert script_group[0].call(many_passes, 300) == 900


@pytest.mark.parametrize("policy", ["any", "script"])
def test_script_unpickles_nothing(tmp_path, policy):
    """Under `any` the same request has its effect: so the file would show it."""
    marker = tmp_path / "unpickled"
    with Group(2, per_rank=[{}, {"request_policy": policy}]) as group:
        group[0].call(throw_bomb, "mkdir", str(marker))
        assert marker.exists() == (policy == "any")
        group.shutdown()


def map_a_file(way: str, path: str) -> str:
    """torch.from_file creates the file, where somebody runs it."""
    import torch
    import torch.distributed.rpc as rpc

    options = {"shared": True, "size": 8, "dtype": torch.uint8}
    call = {"args": (path,), "kwargs": options}
    try:
        if way == "sync":
            return repr(rpc.rpc_sync("worker1", torch.from_file, **call))
        return repr(rpc.remote("worker1", torch.from_file, **call).to_here(timeout=20))
    except RuntimeError as error:
        return f"RuntimeError: {error}"


@pytest.mark.parametrize("policy", ["any", "registered", "script"])
@pytest.mark.parametrize("way", ["sync", "remote"])
def test_operators_that_reach_files(tmp_path, policy, way):
    file = tmp_path / "created"
    with Group(2, per_rank=[{}, {"request_policy": policy}]) as group:
        text = group[0].call(map_a_file, way, str(file))
        assert file.exists() == (policy == "any"), text
        if policy != "any":
            assert (
                f'aten::from_file reads or writes files, and the request policy here is "{policy}"'
                in text
            )
        group.shutdown()


def call_odd_operators() -> list[str]:
    """What they say that wait, seed, print, and read what a distributed backward left."""
    import torch.distributed.rpc as rpc
    from torch.distributed.rpc import PyRRef, _invoke_rpc_builtin

    to = rpc.get_worker_info("worker1")
    # owner and creator, its number there, the same of the fork, the parent, the type
    never_made = PyRRef._deserialize((1, 0, 10_000_000, 0, 20_000_000, 0, "Tensor"))
    texts = []
    for name, argument in (
        ("aten::to_here", never_made),
        ("aten::manual_seed", 1),
        ("aten::_print", "\x1b[2J"),
        ("aten::get_gradients", 1 << 48),
    ):
        with pytest.raises(RuntimeError) as error:
            _invoke_rpc_builtin(to, name, 20.0, argument).wait()
        texts.append(str(error.value))
    return texts


def make_of_odd_numbers() -> tuple[object, list[str]]:
    import torch
    import torch.distributed.rpc as rpc

    ints = rpc.rpc_sync("worker1", torch.zeros, args=([2],), kwargs={"dtype": torch.int16})
    texts = []
    for option in ({"dtype": -5}, {"dtype": 1000}, {"layout": 99}, {"dtype": 255}):
        with pytest.raises(RuntimeError) as error:
            rpc.rpc_sync("worker1", torch.zeros, args=([2],), kwargs=option)
        texts.append(str(error.value))
    with pytest.raises(RuntimeError) as error:
        rpc.rpc_sync("worker1", torch.empty_like, args=(ints,), kwargs={"memory_format": 99})
    return ints.tolist(), [*texts, str(error.value)]


@pytest.mark.parametrize("policy", ["registered", "script"])
def test_numbers_that_are_no_dtype(policy):
    with Group(2, per_rank=[{}, {"request_policy": policy}]) as group:
        ints, texts = group[0].call(make_of_odd_numbers)
        assert ints == [0, 0]
        for text in texts:
            assert "of the number" in text and f'the request policy here is "{policy}"' in text
        group.shutdown()


@pytest.mark.parametrize("policy", ["registered", "script"])
def test_operators_that_do_more_than_compute(policy):
    with Group(2, per_rank=[{}, {"request_policy": policy}]) as group:
        for text in group[0].call(call_odd_operators):
            assert f'does more than compute, and the request policy here is "{policy}"' in text
        # No shutdown, which would wait for word of the RRef that was never made.


def test_script_refuses_an_answer_that_is_python(tmp_path):
    """worker0 serves scripts only, and asks worker1 for Python: its answer is not unpickled."""
    with Group(2, per_rank=[{"request_policy": "script"}, {}]) as group:
        text = group[0].call(how_it_ends, "sync", "plain", 5)
        assert "the answer of worker 'worker1' is refused" in text
        assert SCRIPT_REASON in text
        group.shutdown()


def test_script_on_all_workers(tmp_path):
    environment = {"TEST_SCRATCH": str(tmp_path), "WEFT_REQUEST_POLICY": "script"}
    with Group(3, environment) as group:
        for worker in group:
            worker.call(compile_script)
        group[0].call(scripted_calls)
        assert SCRIPT_REASON in group[0].call(how_it_ends, "sync", "plain", 5)
        group.shutdown(timeout=10)


# registered


@pytest.fixture
def registered_group():
    with Group(2, per_rank=[{}, {"request_policy": "registered"}]) as group:
        group[1].call(register, "shout", "fail", "make_tensor")
        yield group
        if group[0].call(is_initialised):
            group.shutdown()


def test_registered_serves_what_was_registered(registered_group):
    for way in ("sync", "async", "remote", "profiler"):
        assert registered_group[0].call(how_it_ends, way, "shout", "text") == "'TEXT'"
    text = registered_group[0].call(how_it_ends, "sync", "make_tensor", 2)
    assert "tensor([1., 1.])" in text and "torch.Size([2])" in text and "torch.float16" in text


def test_registered_refuses_the_rest_with_the_name(registered_group):
    for way in ("sync", "async", "autograd", "profiler", "both"):
        text = registered_group[0].call(how_it_ends, way, "plain", 5)
        assert "test_policies.plain was not given to weft.register_function" in text, (way, text)
    assert registered_group[0].call(how_it_ends, "sync", "shout", "on") == "'ON'"


def remote_refused() -> str:
    import torch.distributed.rpc as rpc

    rref = rpc.remote("worker1", plain, args=(5,))
    try:
        rref._get_future().wait()
    except RuntimeError as error:
        first = str(error)
    try:
        rref.to_here()
    except RuntimeError as error:
        return f"{first}\n{error}"
    return "answered"


def test_a_refused_remote_is_over_at_once(registered_group):
    """to_here() says that the RRef was not made, and rpc.shutdown does not wait for it."""
    text = registered_group[0].call(remote_refused, timeout=10)
    first, second = text.split("RRef creation via rpc.remote() failed: ")
    for reason in (first, second):
        assert "plain was not given to weft.register_function" in reason
    registered_group.shutdown(timeout=10)
    assert "rpc.remote() failed, and its RRef has no value" in registered_group[0].output()


def test_exceptions_of_registered_functions_travel(registered_group):
    text = registered_group[0].call(how_it_ends, "sync", "fail", "of its own")
    assert text.startswith("ValueError") and "of its own" in text


@pytest.mark.parametrize("how", ["system", "mkdir", "eval", "getattr", "path"])
@pytest.mark.parametrize("function", ["plain", "shout"])
def test_registered_runs_nothing_else_of_a_pickle(registered_group, tmp_path, how, function):
    """Even as an argument of a function that may be called."""
    marker = tmp_path / "unpickled"
    text = registered_group[0].call(throw_bomb, how, str(marker), function)
    assert not marker.exists()
    assert "Error" in text
    assert "registered" in text or "register_function" in text, text


def test_registered_on_both_sides():
    with Group(2, request_policy="registered") as group:
        for worker in group:
            worker.call(register, "shout", "fail", "make_tensor")
        assert group[0].call(how_it_ends, "remote", "shout", "text") == "'TEXT'"
        assert "of its own" in group[0].call(how_it_ends, "sync", "fail", "of its own")
        assert "tensor([1., 1.])" in group[0].call(how_it_ends, "sync", "make_tensor", 2)
        group.shutdown()


def registered_names() -> list:
    import weft

    weft.register_function(shout)

    @weft.register_function(name="elsewhere:name.inside")
    def local():
        return 1

    assert local() == 1
    try:
        weft.register_function(5)
    except TypeError as error:
        return [*weft.registered_functions(), str(error)]
    raise AssertionError("5 was registered")


def test_register_function():
    with Workers(1) as workers:
        names = workers[0].call(registered_names)
        assert names[:2] == ["elsewhere:name.inside", "test_policies:shout"]
        assert "needs a function or class" in names[2]


# The choice.


def policy_here() -> str:
    import torch.distributed.rpc as rpc

    return rpc.api._get_current_rpc_agent()._get_backend_options().request_policy


@pytest.mark.parametrize(
    ("option", "variable", "expected"),
    [
        (None, None, "any"),
        (None, "script", "script"),
        ("registered", "script", "registered"),
        ("any", "script", "any"),
    ],
)
def test_the_option_goes_before_the_variable(option, variable, expected):
    with Workers(1, {"WEFT_REQUEST_POLICY": variable}) as workers:
        options = {"request_policy": option} if option else {}
        workers[0].call(join, 0, 1, workers.meeting, **options)
        assert workers[0].call(policy_here) == expected


@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_policy_that_does_not_exist(way):
    environment = {"WEFT_REQUEST_POLICY": "none"} if way == "variable" else {}
    options = {"request_policy": "none"} if way == "option" else {}
    with Workers(1, environment) as workers:
        error = workers[0].fails(join, 0, 1, workers.meeting, **options)
        assert error.kind == "ValueError"
        name = "WEFT_REQUEST_POLICY" if way == "variable" else "request_policy"
        assert f"{name} must be one of" in error.message
