"""The unpickler of the request policy ``registered``.

A pickle is a program: it calls what it names, and writes into what it holds. This unpickler runs the
part of that language which torch's RPC needs. What a pickle names is never written into: only objects
that the same pickle made are given a state or items. It calls registered classes and makers of plain
values; a registered function runs only as the function of a request. It makes no value that is much larger
than the pickle, takes very long to make, or is so deeply nested that CPython overflows its stack over it.

It is written in Python, since the one in C cannot be restricted so far.
"""

from __future__ import annotations

import collections
import collections.abc
import enum
import io
import pickle
import struct
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed.rpc import internal

from weft._remote.named_tuples import remade
from weft._torch.request_policy import is_registered, refused, resolve

# CPython hashes nested tuples, and frees nested slices and exceptions, by recursion in C without a limit.
# Its pickler cannot write tuples as deep as this. What is freed so may lie in lists, which are freed as
# many levels at a time again.
_MAX_DEPTH = 1000
_MAX_FREED_DEPTH = 100
# A tuple that holds another twice, and so on, is hashed in exponential time, and sets of them compared.
_MAX_KEY_TUPLES = 1000
_MAX_TYPE_NAME = 1 << 12  # letters in the type of an RRef, which torch parses by recursion
_MAX_BITS = 1 << 12  # of a number that is calculated with: CPython divides in quadratic time
# What calls and states copy, in items or bytes, for each byte of the pickle: one that names the same
# value again and again would take its square.
_MAX_COPIES = 4
_FREE_COPIES = 1 << 16

_HELD = (tuple, frozenset, slice, BaseException)  # hashed, compared or freed with their parts
_SIZED = (tuple, list, dict, set, frozenset, bytes, bytearray)
_HASHED = (dict, set, frozenset)

_PICKLER = internal._InternalRPCPickler
# The methods that torch's pickles reach with getattr through their class; the same objects each time.
_RECEIVERS = {name: getattr(_PICKLER, name) for name in ("_tensor_receiver", "_py_rref_receiver")}


def _called(value: Any) -> str:
    """What a message calls this. Its repr could run code, or take for ever."""
    named = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
    return str(value.__qualname__) if named else f"a {type(value).__qualname__}"


def _restricted_getattr(owner: Any, attribute: str) -> Any:
    """``getattr`` for the methods that torch's pickles reach through their class."""
    if owner is _PICKLER and type(attribute) is str and attribute in _RECEIVERS:
        return _RECEIVERS[attribute]
    raise refused(f"and a pickle may not read attributes of {_called(owner)}")


def _is_tensor_index(*args: Any) -> bool:
    return [type(one) for one in args] == [int]


def _is_rref(*args: Any) -> bool:
    parts = args[0] if len(args) == 1 and type(args[0]) is tuple else ()
    kinds = [type(one) for one in parts]
    return kinds == [int] * 6 + [str] and len(parts[6]) <= _MAX_TYPE_NAME


def _is_bytes(*args: Any) -> bool:
    return [type(one) for one in args] in ([], [bytes])  # bytearray(n) has n bytes


def _is_named_tuple(*args: Any) -> bool:
    kinds = [type(one) for one in args]
    return kinds == [str, tuple, tuple] and all(type(one) is str for one in args[1])


def _is_small(*args: Any) -> bool:
    return not any(
        type(one) is range  # some would read it to its end
        or (type(one) is int and one.bit_length() > _MAX_BITS)
        for one in args
    )


def _is_device(*args: Any) -> bool:
    return [type(one) for one in args] in ([str], [str, int])  # a number asks for the accelerators


def _is_name(*args: Any) -> bool:
    return [type(one) for one in args] == [str]


def _is_text(*args: Any) -> bool:
    return [type(one) for one in args] in ([], [str])  # an encoding would be imported, a list shown


def _is_empty(*args: Any) -> bool:
    return not args


# What a pickle may call besides registered classes and exceptions, and with what.
_CALLS: dict[int, Callable[..., bool]] = {
    id(_RECEIVERS["_tensor_receiver"]): _is_tensor_index,
    id(_RECEIVERS["_py_rref_receiver"]): _is_rref,
    id(_restricted_getattr): lambda *args: len(args) == 2,
    id(bytearray): _is_bytes,
    id(remade): _is_named_tuple,
    id(collections.OrderedDict): _is_empty,  # its items follow as items
    id(torch.serialization._get_layout): _is_name,
    id(torch.device): _is_device,
    **{id(one): _is_small for one in (slice, range, complex, torch.Size)},
}


# What makes an object of a registered class that has its __new__ from Python.
_MAKERS: tuple[tuple[type | tuple[type, ...], Callable[..., bool]], ...] = (
    (str, _is_text),
    ((bytes, bytearray), _is_bytes),
    (_SIZED, _is_small),
)


def _check_maker(cls: type, args: tuple[Any, ...]) -> None:
    """Raises if Python would make much of little as this registered class."""
    if isinstance(cls.__new__, types.BuiltinFunctionType):
        check = next((check for bases, check in _MAKERS if issubclass(cls, bases)), None)
        if check is not None and not check(*args):
            raise refused(f"and a pickle may not make a {_called(cls)} so")


def _check_member(cls: type[enum.Enum], args: tuple[Any, ...]) -> None:
    """Raises unless this is a value of the enum: Enum would make its repr for the error.

    With more arguments it would make a class.
    """
    one = args[0] if len(args) == 1 else None
    combined = issubclass(cls, enum.Flag) and type(one) is int and _is_small(one)
    known = len(args) == 1 and (combined or one in cls._value2member_map_)
    if not known:
        raise refused(f"and {_called(cls)} has no such member")


def _check_call(function: Any, args: Any) -> None:
    """Raises unless a pickle may call this so while it is read."""
    if type(args) is not tuple:
        raise refused("and arguments are a tuple")
    if isinstance(function, type) and is_registered(function):
        return
    check = _CALLS.get(id(function))
    if check is None and isinstance(function, type) and issubclass(function, Exception):
        check = _is_small
    if check is None or not check(*args):
        raise refused(f"and a pickle may call registered classes, not {_called(function)} so")


def _is_fresh(made: Any, cls: Any) -> bool:
    """Whether a call of this class has just made the object: one of Python code may hand out another."""
    return (
        isinstance(cls, type)
        and type(made) is cls
        and not isinstance(made, type)  # whoever registers a metaclass
        and type(cls).__call__ is type.__call__
        and isinstance(cls.__new__, types.BuiltinFunctionType)
    )


def _check_whole(value: Any) -> None:
    """Raises if torch, which runs a request and raises a RemoteException, would call something else."""
    if isinstance(value, internal.RemoteException):
        kind = value.exception_type
        if type(value.msg) is not str or not (
            isinstance(kind, type) and issubclass(kind, Exception)
        ):
            raise refused("and a RemoteException has a text and a type of exception")
    elif all(hasattr(value, name) for name in internal.PythonUDF._fields):
        # torch asks for these three, not for the class.
        if not is_registered(value.func):
            raise refused(f"and {_called(value.func)} was not given to weft.register_function")
        if type(value.args) not in (tuple, list) or type(value.kwargs) is not dict:
            raise refused("and a request has a tuple and a dict of arguments")


class _Opcodes(dict[int, Callable[..., None]]):
    def __missing__(self, opcode: int) -> Any:
        raise refused(f"and opcode {bytes([opcode])!r} is not of pickles of torch's RPC")


class RestrictedUnpickler(pickle._Unpickler):
    """Reads one request or answer; raises UnpicklingError for what the policy does not allow."""

    # What CPython's pickler writes of protocols 4 and 5, without extensions and buffers.
    dispatch = _Opcodes(
        {
            ord(code): pickle._Unpickler.dispatch[ord(code)]
            for code in (
                *(
                    pickle.PROTO,
                    pickle.FRAME,
                    pickle.STOP,
                    pickle.MARK,
                    pickle.POP,
                    pickle.POP_MARK,
                ),
                *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BINFLOAT),
                *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.LONG4),
                *(pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8),
                *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
                *(pickle.EMPTY_LIST, pickle.EMPTY_TUPLE, pickle.EMPTY_DICT, pickle.EMPTY_SET),
                *(pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET, pickle.STACK_GLOBAL),
            )
        }
    )

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        # All three by id, with the object, so that no other takes its id.
        self._fresh: dict[int, Any] = {}  # made by this pickle, and without a state as yet
        self._foreign: dict[int, Any] = {}  # a container that a call has returned
        # The depth of what is hashed or freed by recursion, and the number of such values in it.
        self._nested: dict[int, tuple[Any, int, int]] = {}
        self._copies_left = _FREE_COPIES + _MAX_COPIES * file.getbuffer().nbytes

    def load(self) -> Any:
        """The value that the pickle makes."""
        try:
            value = super().load()
            _check_whole(value)
        except Exception as error:
            # torch keeps the table of a message that failed until this thread reads another.
            internal._thread_local_tensor_tables.recv_tables = []
            if isinstance(error, pickle.UnpicklingError):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise refused(f"and the pickle cannot be read: {reason}") from error
        return value

    def find_class(self, module: str, name: str) -> Any:
        """The object of this name, if a pickle may refer to it."""
        if (module, name) == ("builtins", "getattr"):
            return _restricted_getattr
        return resolve(module, name)

    # Values.

    def _push(self, value: Any, parts: Iterable[Any]) -> None:
        """Pushes a value that holds ``parts``."""
        self._note(value, parts)
        self.append(value)

    def _note(self, value: Any, parts: Iterable[Any]) -> None:
        """Raises if ``value``, which holds ``parts``, is nested too deeply."""
        depth = weight = 0
        for part in parts:
            if isinstance(part, BaseException):  # it may not grow any more: its depth is counted
                self._fresh.pop(id(part), None)
            if (known := self._nested.get(id(part))) is not None:
                depth, weight = max(depth, known[1]), weight + known[2]
            elif isinstance(part, _HELD):
                depth, weight = max(depth, 1), weight + 1
        # An object of a Python class is freed, and hashed, with a limit.
        held = isinstance(value, _HELD)
        most = _MAX_DEPTH if isinstance(value, (tuple, frozenset)) else _MAX_FREED_DEPTH
        if held and depth >= most:
            raise refused(f"and a {type(value).__qualname__} may be nested {most} deep")
        if weight:
            weight = min(weight, _MAX_KEY_TUPLES) + 1
            self._nested[id(value)] = (value, depth + 1 if held else 0, weight)

    def _check_keys(self, keys: Iterable[Any]) -> None:
        for key in keys:
            if id(key) in self._nested and self._nested[id(key)][2] > _MAX_KEY_TUPLES:
                raise refused(f"and a key may hold {_MAX_KEY_TUPLES} tuples")

    def _copies(self, values: Iterable[Any]) -> None:
        """Raises if this pickle has had too much copied, these values included."""
        self._copies_left -= sum(len(value) for value in values if isinstance(value, _SIZED))
        if self._copies_left < 0:
            raise refused("and its values are copied too often")

    def load_tuple(self) -> None:
        items = self.pop_mark()
        self._push(tuple(items), items)

    def _load_short_tuple(self, length: int) -> None:
        items = self.stack[-length:]
        if len(items) < length:
            raise IndexError("the stack is too short")
        del self.stack[-length:]
        self._push(tuple(items), items)

    def load_frozenset(self) -> None:
        items = self.pop_mark()
        self._check_keys(items)
        self._push(frozenset(items), items)

    def load_bytearray8(self) -> None:
        """Takes memory for what has come, not for what a length claims."""
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))

    # Objects.

    def load_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        _check_call(function, args)
        self._check_args(function, args)
        self._made(function(*args), function, args)

    def _load_new(self, has_kwargs: bool) -> None:
        kwargs = self.stack.pop() if has_kwargs else {}
        args, cls = self.stack.pop(), self.stack.pop()
        named = cls is internal.PythonUDF or cls is internal.RemoteException
        if not (named or (isinstance(cls, type) and is_registered(cls))):
            raise refused(f"and a pickle may not make {_called(cls)}: it is not registered")
        if type(args) is not tuple or type(kwargs) is not dict:
            raise refused("and arguments are a tuple and a dict")
        parts = (*args, *kwargs.values())
        if not named:
            self._check_args(cls, parts)
        self._made(cls.__new__(cls, *args, **kwargs), cls, parts)

    def _check_args(self, maker: Any, args: tuple[Any, ...]) -> None:
        """Raises if the call would make or copy too much, or hash what takes for ever."""
        is_class = isinstance(maker, type)
        registered = is_class and is_registered(maker)
        if not registered or issubclass(maker, _SIZED):
            self._copies(args)
        if registered and issubclass(maker, enum.Enum):
            self._check_keys(args)
            _check_member(maker, args)
        elif registered:
            _check_maker(maker, args)
        if is_class and issubclass(maker, _HASHED):
            for arg in args:
                for item in arg if type(arg) in (list, tuple) else ():
                    self._check_keys(item if type(item) is list else (item,))

    def _made(self, value: Any, maker: Any, parts: tuple[Any, ...]) -> None:
        if _is_fresh(value, maker):
            self._fresh[id(value)] = value
        elif type(value) in (list, dict, set):
            self._foreign[id(value)] = value
        for kind in (tuple, frozenset):
            if isinstance(value, kind):
                parts = tuple(kind.__iter__(value))
        self._push(value, parts)

    def load_build(self) -> None:
        """Gives an object its state, once: the state may name methods, which are not called later."""
        made, state = self.stack[-2:]
        if self._fresh.pop(id(made), None) is None:
            raise refused(
                f"and a pickle may not change a {type(made).__qualname__} that it did not make"
                " (nor one of a class with a __new__ or a metaclass of its own)"
            )
        states = state if type(state) is tuple and len(state) == 2 else (state,)
        parts = [made, *states]
        for one in states:
            if isinstance(one, dict):  # an OrderedDict, or of a registered class, as well
                if any(dict.__contains__(one, name) for name in ("__class__", "__dict__")):
                    raise refused("and a state may not replace the class or all attributes")
                parts += dict.values(one)
        self._copies(states)
        self._note(made, parts)
        super().load_build()

    def _check_container(self, value: Any, exact: type, kind: Any) -> None:
        own = type(value) is exact and id(value) not in self._foreign
        if own or (id(value) in self._fresh and isinstance(value, kind)):
            return
        raise refused(f"and a pickle may not add to a {type(value).__qualname__}")

    def load_append(self) -> None:
        self._check_container(self.stack[-2], list, collections.abc.MutableSequence)
        super().load_append()

    def load_appends(self) -> None:
        items = self.pop_mark()
        self._check_container(self.stack[-1], list, collections.abc.MutableSequence)
        self.stack[-1].extend(items)

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        self._check_container(target, dict, collections.abc.MutableMapping)
        self._check_keys(items[::2])
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key] = value

    def load_additems(self) -> None:
        items = self.pop_mark()
        self._check_container(self.stack[-1], set, ())
        self._check_keys(items)
        self.stack[-1].update(items)

    dispatch.update(
        {
            ord(pickle.TUPLE): load_tuple,
            ord(pickle.TUPLE1): lambda self: self._load_short_tuple(1),
            ord(pickle.TUPLE2): lambda self: self._load_short_tuple(2),
            ord(pickle.TUPLE3): lambda self: self._load_short_tuple(3),
            ord(pickle.FROZENSET): load_frozenset,
            ord(pickle.BYTEARRAY8): load_bytearray8,
            ord(pickle.REDUCE): load_reduce,
            ord(pickle.NEWOBJ): lambda self: self._load_new(False),
            ord(pickle.NEWOBJ_EX): lambda self: self._load_new(True),
            ord(pickle.BUILD): load_build,
            ord(pickle.APPEND): load_append,
            ord(pickle.APPENDS): load_appends,
            ord(pickle.SETITEM): load_setitem,
            ord(pickle.SETITEMS): load_setitems,
            ord(pickle.ADDITEMS): load_additems,
        }
    )
