"""Exceptions that a peer makes by hand against the policy ``registered``: Python trusts them."""

from __future__ import annotations

import sys

import pytest
from module_group import module_group
from registered_pickles import (
    BUILD,
    EMPTY,
    GET,
    NEW,
    NONE,
    ONE,
    POP,
    REDUCE,
    check_untouched,
    failure,
    large,
    named,
    number,
    register_all,
    request,
    send,
    state,
    text,
)

# Its worker 0 attacks worker 1, which others call too.
group = module_group(3, prepare=register_all, request_policy="registered")


def decoding(start: int, end: int) -> bytes:
    range_ = number(start) + number(end)
    return failure("UnicodeDecodeError", text("utf-8"), b"C\x03abc", range_, text("x"))


# CPython would read outside of a text, write as many marks as a place says, or import a module.
UNSOUND = {
    "before the bytes": (decoding(-200, -199), "make a UnicodeDecodeError of these arguments"),
    "behind the bytes": (decoding(4, 5), "make a UnicodeDecodeError of these arguments"),
    "backwards": (decoding(2, 1), "make a UnicodeDecodeError of these arguments"),
    "letters": (
        failure(
            *("UnicodeEncodeError", text("ascii"), text("abc")),
            number(-200),
            number(-199),
            text("x"),
        ),
        "make a UnicodeEncodeError of these arguments",
    ),
    "translated letters": (
        failure("UnicodeTranslateError", text("abc"), number(-200), number(-199), text("x")),
        "make a UnicodeTranslateError of these arguments",
    ),
    "a start by state": (
        decoding(0, 1) + state(start=number(-200)) + BUILD,
        "set start of a UnicodeDecodeError",
    ),
    "a start by the name of a class": (
        decoding(0, 1) + b"}" + named("Text") + text("start") + b"\x85" + NEW + ONE + b"s" + BUILD,
        "set a Text of a UnicodeDecodeError",
    ),
    "marks": (
        failure(
            *("SyntaxError", text("m"), b"(" + text("f") + ONE + ONE + text("x")),
            ONE + number(10_000) + b"t",
        ),
        "make a SyntaxError of these arguments",
    ),
    "marks of a TabError": (
        failure("TabError", text("m"), b"(" + text("f") + ONE + ONE + text("x") + b"t"),
        "make a TabError of these arguments",
    ),
    "marks by state": (
        failure("SyntaxError", text("m")) + state(end_offset=number(10_000)) + BUILD,
        "set end_offset of a SyntaxError",
    ),
    "a module": (
        failure("ImportError", text("m")) + state(name=text("os"), name_from=text("x")) + BUILD,
        "name_from",
    ),
    "a cause": (
        failure("ValueError") + state(__cause__=failure("ValueError")) + BUILD,
        "set __cause__ of a ValueError",
    ),
    "a context": (
        failure("ValueError") + state(__context__=failure("ValueError")) + BUILD,
        "set __context__ of a ValueError",
    ),
    "many arguments": (
        failure("ValueError") + state(args=failure("range", number(1000))) + BUILD,
        "set args of a ValueError",
    ),
    "a registered class": (
        named("OwnDecodeError")
        + b"("
        + text("utf-8")
        + b"C\x03abc"
        + number(-200)
        + number(-199)
        + text("x")
        + b"t"
        + REDUCE,
        "make a OwnDecodeError of these arguments",
    ),
    "a group": (
        failure("ExceptionGroup", text("m"), b"](" + failure("ValueError") + b"e"),
        "make a ExceptionGroup of these arguments",
    ),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_an_exception_that_python_does_not_format_safely(group, what):
    if what == "a group" and sys.version_info < (3, 11):
        pytest.skip("Python has no groups of exceptions")
    pickled, says = UNSOUND[what]
    answer = group[0].call(send, request(named("same"), pickled + b"\x85"))
    if what == "a module" and sys.version_info < (3, 12):
        assert "Error" in answer
    else:
        assert f"the request policy here is 'registered', and a pickle may not {says}" in answer
    check_untouched(group)


def doubled(first: bytes, opening: bytes, closing: bytes, between: bytes = b"") -> bytes:
    """What holds another one twice, and so on."""
    made, levels = first + b"\x94" + POP, 18
    for level in range(levels):
        last = b"j" + level.to_bytes(4, "little")
        made += opening + between.join([last, last]) + closing + b"\x94" + POP
    return made + b"j" + levels.to_bytes(4, "little")


NESTED = doubled(b"]", b"](", b"e")
LETTERS = text("x" * 1000) + b"\x94" + POP + b"](" + GET * 1000 + b"e"
LONG = {
    "lists": failure("AttributeError", NESTED),
    "tuples": failure("ValueError", doubled(EMPTY, b"(", b"t")),
    "dicts": failure(
        "ValueError",
        doubled(b"}", b"}(" + ONE, b"u", b"K\x02"),
    ),
    "slices": failure(
        "ValueError", doubled(NONE, named("slice", "builtins") + b"(", b"t" + REDUCE)
    ),
    "exceptions": doubled(
        failure("ValueError"), named("ValueError", "builtins") + b"(", b"t" + REDUCE
    ),
    "letters": failure("ValueError", LETTERS),
    "numbers": failure("ValueError", large(4000) + b"\x94" + POP + b"](" + GET * 1000 + b"e"),
    "a file's name": failure("OSError", ONE, text("text"), NESTED),
    "notes": failure("ValueError") + state(__notes__=NESTED) + BUILD,
    "arguments by state": failure("ValueError") + state(args=NESTED + b"\x85") + BUILD,
    "a registered class": named("OwnError") + NESTED + b"\x85" + REDUCE,
}


@pytest.mark.parametrize("what", LONG)
def test_a_text_that_would_be_far_longer_than_the_pickle(group, what):
    """Weft itself makes the text of what a registered function raises."""
    answer = group[0].call(send, request(named("throw"), LONG[what] + b"\x85"))
    assert "the request policy here is 'registered', and its exceptions would show their" in answer
    check_untouched(group)


def test_an_exception_that_a_registered_function_raises(group):
    pickled = failure("ValueError", text("boom"), b"](" + ONE * 1000 + b"e")
    assert "ValueError: ('boom', [1, 1" in group[0].call(
        send, request(named("throw"), pickled + b"\x85")
    )


@pytest.mark.parametrize(
    "pickled",
    [ONE, failure("AttributeError", text("boom")), failure("AttributeError", failure("KeyError"))],
    ids=["number", "text", "exception"],
)
def test_a_request_that_is_no_call(group, pickled):
    """torch passes an AttributeError on in place of a request that it could not read."""
    answer = group[0].call(send, pickled)
    assert "the request is no call of a function, but " in answer
    assert "boom" not in answer
    check_untouched(group)
