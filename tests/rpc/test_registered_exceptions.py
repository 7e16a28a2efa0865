"""Exceptions as values under the policy ``registered``: those of registered classes only."""

from __future__ import annotations

import pytest
from module_group import module_group
from registered_pickles import (
    NEW,
    ONE,
    REDUCE,
    call,
    check_untouched,
    made,
    named,
    number,
    register_all,
    request,
    same,
    send,
    text,
)
from workers import Group

# Its worker 0 attacks worker 1, which others call too.
group = module_group(3, prepare=register_all, request_policy="registered")
REFUSED = "may not make a KeyError: the class was not given to weft.register_function"


def error_of(function, *args) -> str:
    try:
        return call(function, *args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def key_error() -> KeyError:
    return KeyError("key")


def test_an_argument_of_no_registered_class(group):
    answer = group[0].call(error_of, same, [KeyError("key")])
    assert REFUSED in answer and answer.startswith("RuntimeError")
    check_untouched(group)


def test_a_result_of_no_registered_class():
    with Group(2, per_rank=[{"request_policy": "registered"}, {}]) as members:
        assert REFUSED in members[0].call(error_of, key_error)
        members.shutdown()


@pytest.mark.parametrize("opcode", [REDUCE, NEW], ids=["REDUCE", "NEWOBJ"])
def test_one_that_python_does_not_format_safely(group, opcode):
    """CPython would read before the bytes."""
    start = number(-200) + number(-199)
    args = b"(" + text("utf-8") + b"C\x03abc" + start + text("x") + b"t"
    pickled = named("OwnDecodeError") + args + opcode
    answer = group[0].call(send, request(named("throw"), pickled + b"\x85"))
    assert "may not make a OwnDecodeError: Python believes what it says" in answer
    check_untouched(group)


def test_one_that_a_registered_function_raises(group):
    pickled = made("OwnError", text("boom"), b"](" + ONE * 1000 + b"e")
    assert "OwnError: ('boom', [1, 1" in group[0].call(
        send, request(named("throw"), pickled + b"\x85")
    )


@pytest.mark.parametrize(
    "pickled",
    [ONE, made("OwnAttributeError", text("boom")), made("OwnAttributeError", made("OwnError"))],
    ids=["number", "text", "exception"],
)
def test_a_request_that_is_no_call(group, pickled):
    """torch passes an AttributeError on in place of a request that it could not read."""
    answer = group[0].call(send, pickled)
    assert "the request is no call of a function, but " in answer
    assert "boom" not in answer
    check_untouched(group)
