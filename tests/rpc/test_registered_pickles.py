"""Pickles that a peer writes by hand against the policy ``registered``, and values that must still travel."""

from __future__ import annotations

import collections
import dataclasses
import enum
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest
from workers import Group

HERE = Path(__file__).stem  # what workers call this module
_ran: list = []


# What is registered.


def shout(text: str) -> str:
    return text.upper()


def same(value):
    return value


def note(value=None):
    _ran.append(value)
    return value


def throw(error):
    raise error


class Color(enum.Enum):
    RED = 1


class Empty(enum.Enum):
    pass


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Rights(enum.IntFlag):
    READ = 1
    WRITE = 2


Wide = enum.IntFlag("Wide", {f"BIT{n}": 1 << n for n in range(20)}, module=__name__)


@dataclasses.dataclass
class Point:
    x: int = 0
    y: object = None


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x", "y")
    x: int
    y: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


class Stateful:
    def __init__(self, x) -> None:
        self.x = x

    def __getstate__(self):
        return [self.x]

    def __setstate__(self, state) -> None:
        (self.x,) = state

    def __eq__(self, other) -> bool:
        return type(other) is Stateful and other.x == self.x

    __hash__ = None


class Singleton:
    """Its one instance is not the peer's, though the peer's pickle makes a call that returns it."""

    _only = None
    x = "own"

    def __new__(cls):
        cls._only = cls._only or super().__new__(cls)
        return cls._only


class Shelf:
    """Its __new__ hands out a list that is not the peer's."""

    own: list = []

    def __new__(cls):
        return cls.own


class Pair(NamedTuple):
    first: object
    second: object


class Names(list):
    pass


class Table(dict):
    pass


class Text(str):
    pass


class Octets(bytes):
    pass


class OwnError(Exception):
    pass


class OwnDecodeError(UnicodeDecodeError):
    pass


REGISTERED = (
    *(
        shout,
        same,
        note,
        throw,
        Color,
        Empty,
        Access,
        Rights,
        Wide,
        Point,
        Slotted,
        Frozen,
        Stateful,
    ),
    *(Singleton, Shelf, Pair, Names, Table, Text, Octets, OwnError, OwnDecodeError),
)


# The language of pickles.


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def named(name: str, module: str = HERE) -> bytes:
    return text(module) + text(name) + b"\x93"


TORCH = "torch.distributed.rpc.internal"
UDF = named("PythonUDF", TORCH)
EMPTY, BUILD, REDUCE, NEW, POP, GET = b")", b"b", b"R", b"\x81", b"0", b"h\x00"
NONE, ONE = b"N", b"K\x01"
REQUEST = UDF + named("shout") + text("text") + b"\x85}\x87" + NEW
DICT_STATE = b"}" + text("func") + ONE + b"s"


def request(function: bytes, args: bytes = EMPTY, kwargs: bytes = b"}") -> bytes:
    return UDF + function + args + kwargs + b"\x87" + NEW


TARGETS = {
    "PythonUDF": UDF,
    "function": named("shout"),
    "class": named("Point"),
    "member": named("Color") + ONE + b"\x85" + REDUCE,
    "pickler": named("_InternalRPCPickler", TORCH),
    "singleton": named("Singleton") + EMPTY + NEW,
    "singleton called": named("Singleton") + EMPTY + REDUCE,
    "list of a class": named("Shelf") + EMPTY + REDUCE,
    "dtype": named("float32", "torch"),
    "exception": named("ValueError", "builtins"),
}
OPERATIONS = {
    "BUILD dict": DICT_STATE + BUILD,
    "BUILD slots": NONE + DICT_STATE + b"\x86" + BUILD,
    "BUILD defaults": NONE + b"}" + text("__defaults__") + ONE + b"\x85s\x86" + BUILD,
    "APPEND": ONE + b"a",
    "APPENDS": b"(" + ONE + b"e",
    "SETITEM": text("func") + ONE + b"s",
    "SETITEMS": b"(" + text("func") + ONE + b"u",
    "ADDITEMS": b"(" + ONE + b"\x90",
}
# A method named by an object's state would be called by what comes after the state.
POINT = named("Point") + EMPTY + NEW + b"\x94"


def state(**values: bytes) -> bytes:
    return b"}(" + b"".join(text(key) + value for key, value in values.items()) + b"u"


def with_method(name: str, follows: bytes) -> bytes:
    return POINT + state(**{name: named("note")}) + BUILD + follows


DEEP = EMPTY + b"\x85" * 300_000
# Each level holds the one below it twice: tuple n is memo n.
LAUGHS = (
    EMPTY + b"\x94" + b"".join(b"j" + n.to_bytes(4, "little") + b"\x86\x94" for n in range(100))
)
# The same with lists.
LISTS = b"]\x94" + b"".join(
    POP + b"](" + (b"j" + n.to_bytes(4, "little")) * 2 + b"e\x94" for n in range(100)
)
SLICES = b"N" + b"".join(
    [
        b"\x94"
        + POP
        + named("slice", "builtins")
        + b"j"
        + n.to_bytes(4, "little")
        + b"\x85"
        + REDUCE
        for n in range(30_000)
    ]
)
CHAIN = NONE + b"".join(
    b"\x94"
    + (POP + named("OSError", "builtins") + b"J\x0f\x27\0\0" + text("text"))
    + (b"j" + n.to_bytes(4, "little") + b"\x87" + REDUCE)
    for n in range(300)
)

# Two exceptions; the first gets the second as an attribute, which grows afterwards.
GROWING = (named("ValueError", "builtins") + EMPTY + REDUCE + b"\x94") * 2 + (
    b"h\x00" + state(about=b"h\x01") + BUILD + b"h\x01" + state(a=NONE) + BUILD
)


def sets_of_pairs(levels: int) -> bytes:
    """A set of two equal sets; comparing them compares what is in them twice, and so on."""
    made, last = b"", -1
    for _ in range(2):
        made += b"(\x91\x94" + POP
        last += 1
        for _ in range(levels):
            pair = b"j" + last.to_bytes(4, "little")
            single = b"j" + (last + 1).to_bytes(4, "little")
            made += pair + pair + b"\x86\x94" + POP + b"(" + single + b"\x91\x94" + POP
            last += 2
    first = b"j" + (2 * levels).to_bytes(4, "little")
    return made + b"\x8f(" + first + b"j" + last.to_bytes(4, "little") + b"\x90"


def large(bits: int) -> bytes:
    value = (1 << bits) + 1
    return b"\x8b" + (bits // 8 + 1).to_bytes(4, "little") + value.to_bytes(bits // 8 + 1, "little")


def again(function: bytes, argument: bytes, times: int, call: bytes = REDUCE) -> bytes:
    """A list of so many results of one call with one argument."""
    memo = function + b"\x94" + POP + argument + b"\x94" + POP
    return memo + b"](" + (b"h\x00h\x01" + call) * times + b"e"


MANY = named("range", "builtins") + b"\x8a\x06" + (10**12).to_bytes(6, "little") + b"\x85" + REDUCE
REFUSED = {
    "REDUCE of a function": named("note") + EMPTY + REDUCE + POP + REQUEST,
    "NEWOBJ of a function": named("note") + EMPTY + NEW + POP + REQUEST,
    "NEWOBJ of an exception": named("ValueError", "builtins") + EMPTY + NEW + POP + REQUEST,
    "EXT1": request(b"\x82\x01"),
    "EXT2": request(b"\x83\x01\x00"),
    "EXT4": request(b"\x84\x01\x00\x00\x00"),
    "INST": b"(i" + HERE.encode() + b"\nnote\n" + POP + REQUEST,
    "OBJ": b"(" + named("note") + b"o" + POP + REQUEST,
    "GLOBAL": b"c" + HERE.encode() + b"\nnote\n" + POP + REQUEST,
    "PERSID": b"Pname\n" + POP + REQUEST,
    "BINPERSID": ONE + b"Q" + POP + REQUEST,
    "setstate of a state": with_method("__setstate__", ONE + BUILD + POP + REQUEST),
    "extend of a state": with_method("extend", b"(" + ONE + b"e" + POP + REQUEST),
    "append of a state": with_method("append", ONE + b"a" + POP + REQUEST),
    "add of a state": with_method("add", b"(" + ONE + b"\x90" + POP + REQUEST),
    "function that is no function": request(named("bytearray", "builtins"), b"J\0\0\0\4\x85"),
    "class that is no request": named("remade", "weft._remote.named_tuples")
    + (text("Request") + text("func") + text("args") + text("kwargs") + b"\x87")
    + (named("bytearray", "builtins") + b"J\0\0\0\4\x85}\x87" + b"\x87" + REDUCE),
    "bytearray by length": named("bytearray", "builtins")
    + b"J\0\0\0\4\x85"
    + REDUCE
    + POP
    + REQUEST,
    "bytearray in another encoding": named("bytearray", "builtins")
    + (text("a") + text("idna") + b"\x86" + REDUCE + POP + REQUEST),
    "BYTEARRAY8 of a claim": b"\x96" + (1 << 34).to_bytes(8, "little") + b"x" + POP + REQUEST,
    "arguments of a range": request(named("same"), MANY),
    "REDUCE with a range": named("Point") + MANY + REDUCE + POP + REQUEST,
    "NEWOBJ with a range": UDF + MANY + NEW + POP + REQUEST,
    "Size of a range": named("Size", "torch") + MANY + b"\x85" + REDUCE + POP + REQUEST,
    "set of a range": named("set", "builtins") + MANY + b"\x85" + REDUCE + POP + REQUEST,
    "NamedTuple of a range": named("remade", "weft._remote.named_tuples")
    + (text("Name") + EMPTY + MANY + b"\x87" + REDUCE + POP + REQUEST),
    "list class of a range": named("Names") + MANY + b"\x85" + REDUCE + POP + REQUEST,
    "bytes class by length": named("Octets") + b"J\0\0\0\x7f\x85" + NEW + POP + REQUEST,
    "text of many": named("Text") + LISTS + b"\x85" + NEW + POP + REQUEST,
    "text in another encoding": named("Text")
    + (b"B\1\0\0\0a" + text("idna") + b"\x86" + NEW + POP + REQUEST),
    "member of many": named("Color") + LISTS + b"\x85" + REDUCE + POP + REQUEST,
    "member of many tuples": named("Color") + LAUGHS + b"\x85" + REDUCE + POP + REQUEST,
    "members of a new class": named("Empty")
    + (text("x") + text("a b") + b"\x86" + REDUCE + POP + REQUEST),
    "error of a range": named("SyntaxError", "builtins")
    + text("a")
    + MANY
    + b"\x86"
    + REDUCE
    + POP
    + REQUEST,
    "range of large numbers": named("range", "builtins")
    + (ONE + large(1 << 23) + large(1 << 22) + b"\x87" + REDUCE + POP + REQUEST),
    "device by number": named("device", "torch") + ONE + b"\x85" + REDUCE + POP + REQUEST,
    "bytes copied again and again": again(
        named("bytearray", "builtins"), b"B\0\0\4\0" + bytes(1 << 18) + b"\x85", 1 << 17
    )
    + (POP + REQUEST),
    "list copied again and again": again(
        named("Names"), b"](" + NONE * (1 << 18) + b"e\x85", 1 << 17
    )
    + (POP + REQUEST),
    "state copied again and again": b"}("
    + b"".join(text(f"a{n}") + NONE for n in range(1 << 14))
    + (b"u\x94" + POP + (named("Point") + EMPTY + NEW + GET + BUILD + POP) * (1 << 14) + REQUEST),
    "another class": POINT
    + (NONE + state(__class__=named("Stateful")) + b"\x86" + BUILD + POP + REQUEST),
    "another class in an OrderedDict": POINT
    + (NONE + named("OrderedDict", "collections") + EMPTY + REDUCE)
    + (text("__class__") + named("Stateful") + b"s\x86" + BUILD + POP + REQUEST),
    "exception that grows in another": GROWING + POP * 4 + REQUEST,
    "other attributes": POINT + NONE + state(__dict__=b"}") + b"\x86" + BUILD + POP + REQUEST,
    "deep exception": CHAIN + POP + REQUEST,
    "deep attribute": NONE
    + b"".join(
        b"\x94"
        + (POP + named("AttributeError", "builtins") + EMPTY + REDUCE)
        + (state(about=b"j" + n.to_bytes(4, "little")) + BUILD)
        for n in range(300)
    )
    + (POP + REQUEST),
    "sets that are compared for ever": sets_of_pairs(60) + POP + REQUEST,
    "keys of a call": named("Table")
    + (b"](" + LAUGHS + ONE + b"\x86e\x85" + REDUCE + POP + REQUEST),
    "NamedTuple of many": named("remade", "weft._remote.named_tuples")
    + (text("Name") + b"(" + b"".join(text(f"a{n}") for n in range(1001)) + b"t")
    + (b"(" + NONE * 1001 + b"t\x87" + REDUCE + POP + REQUEST),
    "deep key": b"}" + DEEP + ONE + b"s" + POP + REQUEST,
    "deep item": b"\x8f(" + DEEP + b"\x90" + POP + REQUEST,
    "deep frozenset": b"(" + DEEP + b"\x91" + POP + REQUEST,
    "deep slice": SLICES + POP + REQUEST,
    "key of many": b"}" + LAUGHS + ONE + b"s" + POP + REQUEST,
    "item of many": b"\x8f(" + LAUGHS + b"\x90" + POP + REQUEST,
    "frozenset of many": b"(" + LAUGHS + b"\x91" + POP + REQUEST,
    "SystemExit": request(named("shout"), named("SystemExit", "builtins") + b"\x85"),
    "BaseException": request(named("shout"), named("BaseException", "builtins") + b"\x85"),
    "a module of torch": request(named("shout"), named("_dynamo", "torch") + b"\x85"),
    "attribute of a namesake": named("getattr", "builtins")
    + (named("Point") + text("_tensor_receiver") + b"\x86" + REDUCE + POP + REQUEST),
    "tensors by slice": named("getattr", "builtins")
    + (named("_InternalRPCPickler", TORCH) + text("_tensor_receiver") + b"\x86" + REDUCE)
    + (named("slice", "builtins") + b"N\x85" + REDUCE + b"\x85" + REDUCE + POP + REQUEST),
    "RRef of a deep type": named("getattr", "builtins")
    + (named("_InternalRPCPickler", TORCH) + text("_py_rref_receiver") + b"\x86" + REDUCE)
    + (b"(" + ONE * 6 + text("List[" * 200_000 + "int" + "]" * 200_000) + b"t\x85" + REDUCE)
    + (POP + REQUEST),
    "RRef of nothing": named("getattr", "builtins")
    + (named("_InternalRPCPickler", TORCH) + text("_py_rref_receiver") + b"\x86" + REDUCE)
    + (NONE + b"\x85" + REDUCE + POP + REQUEST),
    "text of a claim": b"X\xff\xff\xff\x7f",
    "empty stack": REDUCE,
    "no opcode": b"\xff",
}
# What workers run.


def register_all() -> None:
    import copyreg

    import weft

    for one in REGISTERED:
        weft.register_function(one)
    copyreg._extension_registry[(HERE, "note")] = 1
    copyreg._inverted_registry[1] = (HERE, "note")
    copyreg._extension_cache[1] = note


def send(pickled: bytes) -> str:
    """Sends these bytes to worker1 as a Python call; the answer or the error, as text."""
    from torch.distributed.rpc import api

    worker = api._to_worker_info("worker1")
    try:
        return repr(
            api._invoke_rpc_python_udf(worker, b"\x80\x04" + pickled + b".", [], 20.0, False).wait()
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def call(function, *args) -> str:
    import torch.distributed.rpc as rpc

    return repr(rpc.rpc_sync("worker1", function, args=args, timeout=20))


def shouts() -> str:
    return call(shout, "text")


def what_ran() -> list:
    return [
        *map(repr, _ran),
        shout.__defaults__,
        vars(Point).get("func"),
        Singleton.x,
        Color.RED.value,
        Shelf.own,
    ]


UNTOUCHED = [None, None, "own", 1, []]


@pytest.fixture(scope="module")
def group():
    # worker0 attacks worker1, which others call too.
    with Group(3, request_policy="registered") as members:
        for worker in members:
            worker.call(register_all)
        yield members
        members.shutdown()


def check_untouched(group) -> None:
    assert group[2].call(shouts) == "'TEXT'"
    assert group[1].call(what_ran) == UNTOUCHED


def test_a_request_by_hand(group):
    """So that what follows is refused for what it adds."""
    assert group[0].call(send, REQUEST) == "'TEXT'"
    assert group[0].call(send, POINT + state(x=ONE) + BUILD + POP + REQUEST) == "'TEXT'"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_named_is_not_changed(group, target, operation):
    answer = group[0].call(send, TARGETS[target] + OPERATIONS[operation] + POP + REQUEST)
    assert "the request policy here is 'registered'" in answer
    assert f"{HERE}." not in answer, "the attack has a wrong name in it"
    check_untouched(group)


@pytest.mark.parametrize("what", REFUSED)
def test_a_pickle_does_nothing_else(group, what):
    answer = group[0].call(send, REFUSED[what])
    assert "the request policy here is 'registered'" in answer
    assert f"{HERE}." not in answer, "the attack has a wrong name in it"
    check_untouched(group)


def failure(kind: str, *args: bytes) -> bytes:
    """An exception of Python's, made of these arguments."""
    return named(kind, "builtins") + b"(" + b"".join(args) + b"t" + REDUCE


def number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


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


def travel() -> None:
    """Values of all kinds, there and back."""
    import torch
    import torch.distributed.rpc as rpc

    from weft._remote.named_tuples import remade

    names, table = Names([1, 2]), Table(a=1)
    names.about = table.about = "attribute"
    error = OwnError("text", 5)
    error.detail = {"a": 1}
    ordered = collections.OrderedDict(b=1, a=2)
    ordered.about = "attribute"
    values = [
        *(
            None,
            True,
            5,
            -(10**30),
            2.5,
            1j,
            "text",
            b"bytes",
            bytearray(b"bytes"),
            bytearray(70_000),
        ),
        *(
            [1, [2]],
            (1, (2, (3,))),
            {"a": {1: 2}},
            {(1, (2, 3)): 4},
            {1, (2, 3)},
            frozenset({1, (2,)}),
        ),
        *(
            slice(1, None),
            range(10**12),
            ordered,
            list(range(5000)),
            tuple((n, n) for n in range(5000)),
        ),
        *(
            torch.Size([2, 3]),
            torch.device("cpu"),
            torch.float16,
            torch.sparse_coo,
        ),
        *(
            Color.RED,
            Access.READ | Access.WRITE,
            Rights.READ | Rights.WRITE,
            Text("text"),
            Octets(b"bytes"),
            Point(1, [2]),
            Slotted(1, (2,)),
            Frozen(5),
            Stateful(7),
            Pair(1, Pair(2, "3")),
        ),
        *(names, table, ValueError, shout, {"callback": shout}, remade("P", ("a", "b"), (1, 2))),
    ]
    for value in values:
        back = rpc.rpc_sync("worker1", same, args=(value,), timeout=20)
        assert type(back) is type(value) and back == value, (value, back)
        assert getattr(back, "about", None) == getattr(value, "about", None)
    back = rpc.rpc_sync("worker1", same, args=(error,), timeout=20)
    assert type(back) is OwnError and back.args == error.args and back.detail == error.detail
    back = rpc.rpc_sync("worker1", same, args=(KeyError("key"),), timeout=20)
    assert type(back) is KeyError and back.args == ("key",)
    for error in (
        UnicodeDecodeError("utf-8", b"abc", 1, 2, "x"),
        UnicodeEncodeError("ascii", "abc", 3, 3, "x"),
        OwnDecodeError("utf-8", b"", 0, 0, "x"),
        SyntaxError("text"),
        ImportError("text", name="a", path="b"),
        AttributeError("text", name="a", obj=5),
        OSError(2, "text", "file"),
        StopIteration(5),
    ):
        error.about, error.__notes__ = "attribute", ["note"]
        back = rpc.rpc_sync("worker1", same, args=(error,), timeout=20)
        assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
        assert getattr(back, "path", None) == getattr(error, "path", None)
    ring: list = []
    ring.append((ring,))
    back = rpc.rpc_sync("worker1", same, args=(ring,), timeout=20)
    assert back[0][0] is back
    shared = [1]
    back = rpc.rpc_sync("worker1", same, args=([shared, shared],), timeout=20)
    assert back[0] is back[1]
    tensors = {"a": torch.ones(2), "b": [torch.arange(3)]}
    back = rpc.rpc_sync("worker1", same, args=(tensors,), timeout=20)
    assert torch.equal(back["a"], tensors["a"]) and torch.equal(back["b"][0], tensors["b"][0])
    rref = rpc.RRef(torch.ones(2))
    assert torch.equal(
        rpc.rpc_sync("worker1", same, args=(rref,), timeout=20).to_here(), torch.ones(2)
    )


@pytest.mark.parametrize(
    "pickled",
    [
        named("\x1b[2J\n[W1128 forged]"),
        failure("ValueError") + state(**{"\x1b[2J\n[W1128 forged]": ONE}) + BUILD + ONE + b"b",
        ONE + state(a=named("note", "\x1b[2J\n[W1128 forged]")),
    ],
    ids=["name", "attribute", "module"],
)
def test_what_is_refused_is_printable(group, pickled):
    """torch logs the error."""
    answer = group[0].call(send, pickled + POP + REQUEST)
    assert "the request policy here is 'registered'" in answer
    assert "\x1b" not in answer + group[1].output()
    assert "\n[W1128 forged]" not in answer + group[1].output()


def kept_members() -> list[int]:
    """How many members the classes keep: Python keeps each combination that it has made."""
    return [len(one._value2member_map_) for one in (Access, Rights, Wide)]


@pytest.mark.parametrize("flag", ["Access", "Rights"])
@pytest.mark.parametrize("value", [4, 7, 1 << 30, -9])
def test_a_flag_of_unknown_bits(group, flag, value):
    before = group[1].call(kept_members)
    made = named(flag) + number(value) + b"\x85" + REDUCE
    assert f"and {flag} has no such member" in group[0].call(
        send, request(named("same"), made + b"\x85")
    )
    assert group[1].call(kept_members) == before


def test_more_combinations_of_flags_than_are_kept(group):
    one = named("Wide") + b"\x94" + POP
    made = (
        one + b"](" + b"".join(GET + number(3 * n) + b"\x85" + REDUCE for n in range(5000)) + b"e"
    )
    answer = group[0].call(send, request(named("same"), made + b"\x85"))
    assert "and Wide has 4096 members and combinations already" in answer
    assert group[1].call(kept_members)[2] == 4096
    again = named("Wide") + number(3) + b"\x85" + REDUCE
    assert "3" in group[0].call(send, request(named("same"), again + b"\x85"))


def test_values_travel(group):
    group[0].call(travel)


def end_the_caller(kind: str):
    """An answer that torch turns into an exception at the caller, or takes for a request."""
    from torch.distributed.rpc.internal import PythonUDF, RemoteException

    if kind == "PythonUDF":
        return PythonUDF(bytearray, (5,), {})
    return RemoteException("gone", {"SystemExit": SystemExit, "function": note}[kind])


def ask(kind: str) -> str:
    try:
        return call(end_the_caller, kind)
    except RuntimeError as error:
        return f"RuntimeError: {error}"
    except SystemExit:
        return "SystemExit"


@pytest.mark.parametrize("kind", ["SystemExit", "function", "PythonUDF"])
def test_an_answer_ends_nobody(kind):
    with Group(2, per_rank=[{"request_policy": "registered"}, {}]) as members:
        members[0].call(register_all)
        assert "the request policy here is 'registered'" in members[0].call(ask, kind)
        assert members[0].call(what_ran) == UNTOUCHED
        members.shutdown()


def test_a_class_that_an_answer_names_is_not_looked_for_by_code(monkeypatch):
    """torch imports some of its modules when their names are asked for."""
    from weft._remote.named_tuples import class_called

    asked = []
    module = types.ModuleType("asked_for_names")
    module.Pair = Pair
    module.__getattr__ = asked.append
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert class_called("__torch__.asked_for_names.Pair") is Pair
    assert class_called("__torch__.asked_for_names.Other") is None
    assert not asked
