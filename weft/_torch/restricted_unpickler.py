"""The unpickler of the request policy ``registered``.

A pickle is a program: it calls what it names, and writes into what it holds. This unpickler runs the part
of that language which torch's RPC needs. It never writes into what a pickle names: it gives state and
items only to objects that the same pickle made. It calls only registered classes and makers of plain
values (``pickle_rules.py``); a registered function runs only as the function of a request. It makes no
value that is much larger than the pickle, takes very long to make, or is nested so deeply that CPython's
stack overflows over it (``pickle_limits.py``).

It is written in Python because the unpickler in C cannot be restricted to that extent.
"""

from __future__ import annotations

import collections.abc
import enum
import io
import pickle
import struct
from collections.abc import Callable, Iterable
from typing import Any

from torch.distributed.rpc import internal

from weft._torch.pickle_limits import PickleLimits
from weft._torch.pickle_rules import (
    SIZED,
    check_call,
    check_maker,
    check_member,
    check_request,
    is_fresh,
    not_registered,
    restricted_getattr,
)
from weft._torch.request_policy import is_registered, refused, resolve

_HASHED = (dict, set, frozenset)


class _Opcodes(dict[int, Callable[..., None]]):
    def __missing__(self, opcode: int) -> Any:
        raise refused(f"and torch's RPC writes no opcode {bytes([opcode])!r}")


class RestrictedUnpickler(pickle._Unpickler):
    """Reads one request or answer; raises UnpicklingError for what the policy does not allow."""

    # The opcodes that CPython's pickler writes in protocols 4 and 5, without extensions and buffers.
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
        self._limits = PickleLimits(file.getbuffer().nbytes)
        # Both by id, with the object itself, so that no other object takes its id.
        self._fresh: dict[int, Any] = {}  # made by this pickle, and not given a state yet
        self._foreign: dict[int, Any] = {}  # containers that calls have returned

    def load(self) -> Any:
        """The value that the pickle makes."""
        try:
            value = super().load()
            check_request(value)
        except Exception as error:
            # torch would keep the tensors of a message that failed until this thread reads another one.
            internal._thread_local_tensor_tables.recv_tables = []
            if isinstance(error, pickle.UnpicklingError):
                raise
            reason = f"{type(error).__name__}: {error}"
            raise refused(f"and the pickle cannot be read: {reason}") from error
        return value

    def find_class(self, module: str, name: str) -> Any:
        """The object of this name, if a pickle may refer to it."""
        if (module, name) == ("builtins", "getattr"):
            return restricted_getattr
        return resolve(module, name)

    # Values.

    def _push(self, value: Any, parts: Iterable[Any]) -> None:
        """Pushes a value that holds ``parts``."""
        self._limits.check_depth(value, parts)
        self.append(value)

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
        self._limits.check_keys(items)
        self._push(frozenset(items), items)

    def load_bytearray8(self) -> None:
        """Takes memory for the bytes that are there, not for the length that the pickle claims."""
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))

    # Objects.

    def load_reduce(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        check_call(function, args)
        self._check_args(function, args)
        self._push_made(function(*args), function, args)

    def _load_new(self, has_kwargs: bool) -> None:
        kwargs = self.stack.pop() if has_kwargs else {}
        args, cls = self.stack.pop(), self.stack.pop()
        named = cls is internal.PythonUDF or cls is internal.RemoteException
        if not (named or (isinstance(cls, type) and is_registered(cls))):
            raise not_registered(cls)
        if type(args) is not tuple or type(kwargs) is not dict:
            raise refused("and arguments must be a tuple and a dict")
        parts = (*args, *kwargs.values())
        if not named:
            self._check_args(cls, parts)
        self._push_made(cls.__new__(cls, *args, **kwargs), cls, parts)

    def _check_args(self, maker: Any, args: tuple[Any, ...]) -> None:
        """Raises if the call would make or copy too much, or would hash for ever."""
        is_class = isinstance(maker, type)
        registered = is_class and is_registered(maker)
        if not registered or issubclass(maker, SIZED):
            self._limits.count_copies(args)
        if registered and issubclass(maker, enum.Enum):
            self._limits.check_keys(args)
            check_member(maker, args)
        elif registered:
            check_maker(maker, args)
        if is_class and issubclass(maker, _HASHED):
            for arg in args:
                for item in arg if type(arg) in (list, tuple) else ():
                    self._limits.check_keys(item if type(item) is list else (item,))

    def _push_made(self, value: Any, maker: Any, parts: tuple[Any, ...]) -> None:
        """Pushes what a call of ``maker`` with ``parts`` has returned."""
        if is_fresh(value, maker):
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
                if isinstance(made, BaseException) and type(dict.get(one, "args", ())) is not tuple:
                    raise refused(
                        "and an exception's arguments must be a tuple"
                    )  # it reads a range
                parts += dict.values(one)
        self._limits.count_copies(states)
        self._limits.check_depth(made, parts)
        super().load_build()

    def _check_container(self, value: Any, exact: type, kind: Any) -> None:
        """Raises unless this pickle made ``value``: a plain container, or an object of such a class."""
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
        self._limits.check_keys(items[::2])
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[key] = value

    def load_additems(self) -> None:
        items = self.pop_mark()
        self._check_container(self.stack[-1], set, ())
        self._limits.check_keys(items)
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
