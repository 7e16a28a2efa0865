"""What a remote function raises reaches the caller as its own type, with one readable traceback."""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
import threading
import types
import weakref

import pytest
from module_group import module_group
from workers import Group

HOW = pytest.mark.parametrize("how", ["sync", "async", "to_here", "then"])


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code = code


def bad_value(number: int):
    raise ValueError(f"bad number {number}: ü \\n stays")


def bad_key():
    return {}["Schlüssel"]


def two_arguments():
    raise TwoArguments(3, "too far")


class StrictNew(Exception):
    def __new__(cls, code: int, text: str):
        return super().__new__(cls, code, text)


def strict_new():
    raise StrictNew(3, "too far")


def caught_by_its_type() -> str:
    import torch.distributed.rpc as rpc

    try:
        rpc.rpc_sync("worker1", two_arguments)
    except TwoArguments as error:
        return str(error)
    return ""


def leaves_the_program():
    raise SystemExit(3)


def is_interrupted():
    raise KeyboardInterrupt


def what_ends_a_program_ends_the_call() -> None:
    import torch.distributed.rpc as rpc

    from weft.errors import RemoteError

    for function in (leaves_the_program, is_interrupted):
        with pytest.raises(RemoteError, match=f"On WorkerInfo.*worker1.*\\n.*{function.__name__}"):
            rpc.rpc_sync("worker1", function)
        with pytest.raises(RuntimeError, match=function.__name__):
            rpc.rpc_async("worker1", function).wait()
    with pytest.raises(ValueError):
        rpc.rpc_sync("worker1", bad_value, args=(1,))


def local_type():
    class Local(Exception):
        pass

    raise Local("from here")


def type_of_a_module_that_only_one_has():
    module = sys.modules["only_here"] = types.ModuleType("only_here")
    module.Own = type("Own", (Exception,), {"__module__": "only_here"})
    raise module.Own("mine alone")


def lost_result():
    return lambda: 1


def locked_result():
    import torch
    import torch.distributed.rpc as rpc

    # Neither the tensor nor the RRef before the lock is kept for the next message.
    return {"sum": torch.ones(2), "here": rpc.RRef(1), "lock": threading.Lock()}


def pass_on():
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync("worker0", bad_value, args=(7,))


def only_the_caller_has_it():
    return 1


def forget_it(module: str) -> None:
    del vars(importlib.import_module(module))["only_the_caller_has_it"]


def asynchronous(function):
    """rpc.functions.async_execution, without importing torch here."""
    function._wrapped_async_rpc_function = function
    return function


@asynchronous
def has_failed():
    import torch

    future = torch.futures.Future()
    future.set_exception(KeyError("Schlüssel"))
    return future


@asynchronous
def fails_later():
    import torch

    future = torch.futures.Future()
    threading.Thread(target=future.set_exception, args=(KeyError("Schlüssel"),)).start()
    return future


@asynchronous
def has_result(value):
    import torch

    future = torch.futures.Future()
    future.set_result(value)
    return future


@asynchronous
def no_future(value):
    return value


def results_of_futures() -> list[object]:
    import torch.distributed.rpc as rpc

    values = (7, None, ValueError("a value"))
    return [rpc.rpc_sync("worker1", has_result, args=(value,)) for value in values]


def caught(how: str, function, *args) -> tuple[list[str], str]:
    """The names of the classes of what the call raises, and its text."""
    import torch.distributed.rpc as rpc

    try:
        if how == "sync":
            rpc.rpc_sync("worker1", function, args=args)
        elif how == "async":
            rpc.rpc_async("worker1", function, args=args).wait()
        elif how == "then":  # the future that then() gives waits for the same one
            first = rpc.rpc_async("worker1", function, args=args)
            first.then(lambda future: None).wait()
            first.wait()
        else:
            rpc.remote("worker1", function, args=args).to_here()
    except Exception as error:
        return [kind.__name__ for kind in type(error).__mro__], str(error)
    raise AssertionError("nothing was raised")


def caught_twice(function) -> bool:
    import torch.distributed.rpc as rpc

    future = rpc.rpc_async("worker1", function)
    kinds = []
    for _ in range(2):
        try:
            future.wait()
        except Exception as error:
            kinds.append(type(error).__name__)
    return kinds


group = module_group(2, rpc_timeout=30)


def test_what_ends_a_program_ends_its_call_alone(group):
    group[0].call(what_ends_a_program_ends_the_call)


@HOW
def test_a_type_and_its_text_arrive(group, how):
    kinds, text = group[0].call(caught, how, bad_value, 1)
    assert kinds[0] == "ValueError"
    lines = text.splitlines()
    assert lines[0] == "On WorkerInfo(id=1, name=worker1):"
    assert lines[1].endswith("test_remote_errors.bad_value raised ValueError")
    assert lines[2:4] == ["", "Traceback (most recent call last):"]
    assert lines[-1] == "ValueError: bad number 1: ü \\n stays"
    assert text.count("Traceback (most recent call last):") == 1
    assert text.count("bad number 1: ü") == 1
    assert "torch/distributed/rpc" not in text
    assert "At:" not in text


@HOW
def test_a_result_that_cannot_be_pickled_is_named(group, how):
    kinds, text = group[0].call(caught, how, locked_result)
    assert kinds[0] == "TypeError"
    place, said = text.splitlines()
    assert place == "On WorkerInfo(id=1, name=worker1):"
    assert said.startswith("the result, of type builtins.dict, cannot be sent: TypeError: cannot")


@HOW
def test_the_text_of_a_key_error_has_lines(group, how):
    kinds, text = group[0].call(caught, how, bad_key)
    assert "KeyError" in kinds
    assert text.splitlines()[-1] == "KeyError: 'Schlüssel'"


@HOW
@pytest.mark.parametrize(
    ("function", "says"),
    [
        (local_type, "Local: from here"),
        (type_of_a_module_that_only_one_has, "only_here.Own: mine alone"),
    ],
)
def test_a_type_that_cannot_be_made_here_is_a_remote_error(group, how, function, says):
    kinds, text = group[0].call(caught, how, function)
    assert kinds[:2] == ["RemoteError", "RuntimeError"]
    assert f"raised {says.partition(':')[0].rpartition('.')[2]}\n" in text
    assert says in text


@HOW
def test_a_type_that_takes_more_than_a_text_is_both(group, how):
    kinds, text = group[0].call(caught, how, two_arguments)
    assert kinds[:3] == ["TwoArguments", "TwoArguments", "RemoteError"]
    assert "(this is a RemoteError: the type cannot be made of a text" in text
    assert "TwoArguments: (3, 'too far')" in text


def test_except_catches_a_type_that_takes_more_than_a_text(group):
    assert "raised TwoArguments" in group[0].call(caught_by_its_type)


def test_a_type_with_a_constructor_that_cannot_be_avoided_is_a_remote_error(group):
    kinds, text = group[0].call(caught, "sync", strict_new)
    assert kinds[:2] == ["RemoteError", "RuntimeError"]
    assert text.endswith("test_remote_errors.StrictNew)")


def test_a_function_that_the_callee_lacks_is_a_remote_error(group):
    group[1].call(forget_it, only_the_caller_has_it.__module__)
    kinds, text = group[0].call(caught, "sync", only_the_caller_has_it)
    assert kinds[:2] == ["RemoteError", "RuntimeError"]
    assert "the call raised RemoteError" in text
    assert "Can't get attribute 'only_the_caller_has_it'" in text
    assert "RPC pickler does not serialize" in text


def test_a_failure_that_is_passed_on_is_told_once_per_worker(group):
    kinds, text = group[0].call(caught, "sync", pass_on)
    assert kinds[0] == "ValueError"
    assert text.count("On WorkerInfo(id=1, name=worker1):") == 1
    assert text.count("On WorkerInfo(id=0, name=worker0):") == 1
    assert text.count("bad number 7") == 1


def test_a_future_raises_at_each_wait(group):
    assert group[0].call(caught_twice, two_arguments) == ["TwoArguments", "TwoArguments"]
    assert group[0].call(caught_twice, bad_key) == ["KeyError", "KeyError"]


def frames_that_a_failure_keeps(how: str) -> int:
    """How many locals of frames that a failed call's exception passed are alive afterwards."""
    import gc
    import weakref

    import torch
    import torch.distributed.rpc as rpc

    alive = []

    def once() -> None:
        batch = {0.0}  # a set, because there are references to those
        alive.append(weakref.ref(batch))
        future = rpc.rpc_async("worker1", bad_key)
        if how == "all":
            torch.futures.wait_all([future])
        elif how == "twice":
            with contextlib.suppress(KeyError):
                future.wait()
        future.wait()

    for _ in range(3):
        with contextlib.suppress(KeyError):
            once()
    gc.collect()
    return sum(one() is not None for one in alive)


@pytest.mark.parametrize("how", ["once", "twice", "all"])
def test_a_failed_future_keeps_no_frames_of_its_waiters(group, how):
    assert group[0].call(frames_that_a_failure_keeps, how) == 0


@HOW
@pytest.mark.parametrize("function", [has_failed, fails_later])
def test_a_future_with_an_exception_raises_it(group, how, function):
    kinds, text = group[0].call(caught, how, function)
    assert "KeyError" in kinds
    lines = text.splitlines()
    assert lines[0] == "On WorkerInfo(id=1, name=worker1):"
    assert lines[1].endswith(f"test_remote_errors.{function.__name__} raised KeyError")
    assert lines[-1] == "KeyError: 'Schlüssel'"


ALIVE: list[weakref.ref] = []


@asynchronous
def fails_with_a_kept(key: str):
    import torch

    error = TwoArguments(3, key)
    ALIVE.append(weakref.ref(error))
    future = torch.futures.Future()
    future.set_exception(error)
    return future


def alive() -> int:
    import gc

    gc.collect()
    return sum(one() is not None for one in ALIVE)


def fail_often(times: int) -> int:
    import torch.distributed.rpc as rpc

    for _ in range(times):
        with contextlib.suppress(TwoArguments):
            rpc.rpc_sync("worker1", fails_with_a_kept, args=("missing",))
    return rpc.rpc_sync("worker1", alive)


def test_the_exception_of_a_future_is_let_go_by_its_worker(group):
    """It had the frames that waited for the future, and they had the future, whose value it was."""
    assert group[0].call(fail_often, 20) <= 1


def test_the_results_of_futures_arrive(group):
    seven, none, value = group[0].call(results_of_futures)
    assert (seven, none) == (7, None)
    assert (type(value), str(value)) == (ValueError, "a value")


@HOW
@pytest.mark.parametrize(("value", "kind"), [(None, "NoneType"), (5, "int")])
def test_an_asynchronous_function_that_returns_no_future_fails(group, how, value, kind):
    for caller in group:
        kinds, text = caller.call(caught, how, no_future, value)
        assert kinds[0] == "RuntimeError"
        assert text.splitlines()[1].endswith("test_remote_errors.no_future raised RuntimeError")
        assert f"must return a torch.futures.Future object, but got builtins.{kind}" in text


def caught_of_operator() -> str:
    import torch
    import torch.distributed.rpc as rpc

    with pytest.raises(RuntimeError) as error:
        rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), torch.ones(3)))
    return str(error.value)


def test_frames_of_cpp_are_left_out(group):
    text = group[0].call(caught_of_operator)
    assert text.startswith("The size of tensor a (2) must match")
    assert "frame #" not in text
    _, text = group[0].call(caught, "sync", lost_result)
    assert "pickle" in text
    assert "frame #" not in text


ALONE = """
import torch, weft, torch.distributed.rpc as rpc
weft.init_rpc("alone", world_size=1)
try:
    rpc.rpc_sync("alone", torch.add, args=(torch.ones(2), torch.ones(3)))
except RuntimeError as error:
    print(error)
rpc.shutdown()
"""


@pytest.mark.parametrize("asked", ["0", "1"])
def test_frames_of_cpp_come_where_torch_is_asked_for_them(asked):
    environment = {
        **os.environ,
        "TORCH_SHOW_CPP_STACKTRACES": asked,
        "TORCH_DISABLE_ADDR2LINE": "1",  # symbols take seconds otherwise
    }
    ran = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout.startswith("The size of tensor a (2) must match")
    assert ("most recent call first" in ran.stdout) == (asked == "1"), ran.stderr


def says(text: str):
    raise ValueError(text)


def register(function) -> None:
    import weft

    weft.register_function(function)


@pytest.mark.parametrize("policy", ["any", "registered"])
def test_a_peer_writes_no_lines_of_its_own_to_the_output(policy):
    forged = "[2026-11-28 07:01:06] weft: worker 'worker7' (rank 7) is lost"
    text = f"\x1b[2J\x1b]0;title\x07\x9b31m\r{forged}\n{forged}: ü"
    with Group(2, rpc_timeout=30, per_rank=[{}, {"request_policy": policy}]) as group:
        group[1].call(register, says)
        assert text in group[0].call(caught, "sync", says, text)[1]
        output = group[1].output()
        assert f"\\x1b[2J\\x1b]0;title\\x07\\x9b31m\\r{forged}\n    {forged}: ü\n" in output
        assert not set(output) & {"\x1b", "\x07", "\x9b", "\r"}
        assert not [line for line in output.splitlines() if line.startswith(forged)]
        lines = output.partition("On WorkerInfo(id=1, name=worker1):\n")[2].splitlines()
        assert lines[0].startswith("    ") and lines[0].endswith("says raised ValueError")
        group.shutdown()


def test_under_the_registered_policy_an_unknown_type_is_a_remote_error():
    with Group(2, rpc_timeout=30, per_rank=[{"request_policy": "registered"}, {}]) as group:
        kinds, text = group[0].call(caught, "sync", two_arguments)
        assert kinds[0] == "RemoteError", text
        assert "TwoArguments: (3, 'too far')" in text
        assert group[0].call(caught, "sync", bad_value, 2)[0][0] == "ValueError"
        group.shutdown()
