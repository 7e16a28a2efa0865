"""What a peer may write by hand against the policy ``registered``, and what is registered."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import NamedTuple

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


class OwnAttributeError(AttributeError):
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
    *(
        Singleton,
        Shelf,
        Pair,
        Names,
        Table,
        Text,
        Octets,
        OwnError,
        OwnAttributeError,
        OwnDecodeError,
        OSError,
    ),
)


# The language of pickles.


def text(value: str) -> bytes:
    return b"X" + len(value).to_bytes(4, "little") + value.encode()


def named(name: str, module: str = HERE) -> bytes:
    return text(module) + text(name) + b"\x93"


def made(kind: str, *args: bytes, module: str = HERE) -> bytes:
    """An object of a class, made of these arguments."""
    return named(kind, module) + b"(" + b"".join(args) + b"t" + REDUCE


def number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


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
    "state of an exception": made("OwnError") + state(args=MANY) + BUILD + POP + REQUEST,
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
    "other attributes": POINT + NONE + state(__dict__=b"}") + b"\x86" + BUILD + POP + REQUEST,
    "deep exception": CHAIN + POP + REQUEST,
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


def check_untouched(group) -> None:
    assert group[2].call(shouts) == "'TEXT'"
    assert group[1].call(what_ran) == UNTOUCHED
