"""What a pickle may not do under the policy ``registered``, watched from outside of the unpickler.

`Watch` knows by itself what is registered and what is harmless; it does not ask the policy.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import pickle
import resource
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.rpc import internal

import weft
from weft._remote import named_tuples
from weft._torch import pickle_limits, pickle_rules, request_policy, restricted_unpickler
from weft._torch.printable import printable

SLOWEST = 5.0  # seconds of one pickle, on a machine that does much else
LARGEST = 256 << 20  # bytes that one pickle of some KiB may take

called: list[str] = []  # what nobody may call


def trap(*args: Any, **kwargs: Any) -> None:
    """Is not registered."""
    called.append("trap")


class Trap:
    """Is not registered."""

    def __init__(self, *args: Any) -> None:
        called.append("Trap")

    def __setstate__(self, state: Any) -> None:
        called.append("Trap.__setstate__")


def function(*args: Any, **kwargs: Any) -> None:
    """Is registered, and runs only as the function of a request: not while it is read."""
    called.append("function")


class Shared:
    """Its __new__ hands out a list that is not the peer's."""

    own: list = []

    def __new__(cls, *args: Any) -> Any:
        return cls.own


class SharedTable(Shared):
    own: Any = {}


class SharedSet(Shared):
    own: Any = set()


class Callable:
    def __call__(self, *args: Any) -> None:
        called.append("Callable")


instance = Callable()
instance.__module__, instance.__qualname__ = __name__, "instance"  # type: ignore[attr-defined]


class Meta(type):
    def __call__(cls, *args: Any) -> Any:
        return cls


class WithMeta(metaclass=Meta):
    pass


class Items(set):
    pass


class Frozen(frozenset):
    pass


class Parts(tuple):
    pass


REGISTERED = (
    *(function, Shared, SharedTable, SharedSet, instance),
    *(WithMeta, Items, Frozen, Parts),
)
_HARMLESS = (
    *(internal.PythonUDF, internal.RemoteException, internal._InternalRPCPickler),
    *(torch.Size, torch.device, torch.serialization._get_layout, collections.OrderedDict),
    *(set, frozenset, slice, range, complex, bytearray),
    *(named_tuples.remade, weft.errors.RemoteError, pickle_rules.restricted_getattr),
)
_PLAIN = (torch.dtype, torch.layout, torch.memory_format)
# NamedTuples are compiled, from names that must be identifiers.
_IN_NAMED_TUPLES = {"compile", "exec", "sys._getframe", "object.__setattr__"}
_NAMED_TUPLES = (collections.namedtuple.__code__, named_tuples._stand_in.__wrapped__.__code__)


class Found(Exception):
    """A pickle did what it may not do."""


def _attributes(one: Any) -> dict[str, Any]:
    try:
        state = dict(vars(one))
    except TypeError:
        state = {}
    for name in ("__defaults__", "__kwdefaults__", "__code__", "__bases__", "__class__"):
        state[name] = getattr(one, name, None)
    return state


class Watch:
    """Watches pickles while they are read. There is one in a process, for good."""

    def __init__(self, registered: tuple[Any, ...], others: tuple[types.ModuleType, ...]) -> None:
        self.registered = (*registered, *REGISTERED)
        self.watched = [
            *self.registered,
            *_HARMLESS,
            *(trap, Trap, Exception, ValueError, collections, named_tuples, request_policy),
            *(restricted_unpickler, restricted_unpickler.RestrictedUnpickler, internal),
            *(pickle_limits, pickle_limits.PickleLimits, pickle_rules),
            *(builtins, sys.modules[__name__], *others),
        ]
        for value in self.registered:
            weft.register_function(value)
        self.events: list[str] = []
        self.resolved: list[tuple[str, str, Any]] = []
        self._armed = self._within = False
        sys.addaudithook(self._audit)
        self._record_names()
        torch.serialization._get_layout("torch.strided")  # it has a cache
        printable("\x1b")  # imports an encoding
        self.before = self._snapshot()

    def _record_names(self) -> None:
        find = restricted_unpickler.RestrictedUnpickler.find_class

        def find_class(unpickler: Any, module: str, name: str) -> Any:
            found = find(unpickler, module, name)
            self.resolved.append((module, name, found))
            return found

        restricted_unpickler.RestrictedUnpickler.find_class = find_class  # type: ignore[method-assign]

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._armed or self._within or event == "builtins.id":
            return
        self._within = True
        try:
            code = sys._getframe(1).f_code
            if event in _IN_NAMED_TUPLES and code in _NAMED_TUPLES:
                return
            self.events.append(f"{event} in {code.co_name}: {str(arguments)[:200]}")
        finally:
            self._within = False

    def _snapshot(self) -> list[dict[str, Any]]:
        contents = [list(Shared.own), dict(SharedTable.own), set(SharedSet.own)]
        return [{"": contents}, *map(_attributes, self.watched)]

    def check_unchanged(self) -> None:
        """Raises Found if anything that the pickles could reach is another than before."""
        now = self._snapshot()
        if called:
            raise Found(f"called: {called}")
        if now[0] != self.before[0]:
            raise Found(f"changed: {now[0]}")
        for one, old, new in zip(self.watched, self.before[1:], now[1:], strict=True):
            changed = {
                name
                for name in old.keys() | new.keys()
                if old.get(name, self) is not new.get(name, self)
            } - {"__annotations__", "_registered", "_objects"}
            if changed:
                raise Found(f"changed: {sorted(changed)} of {one!r}")

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        self.events.clear()
        self.resolved.clear()
        began, most = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._armed = True
        try:
            yield
        finally:
            self._armed = False
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most) << 10
        if self.events:
            raise Found(f"events: {self.events[:3]}")
        if time.monotonic() - began > SLOWEST:
            raise Found(f"it takes {time.monotonic() - began:.1f} s")
        if taken > LARGEST:
            raise Found(f"it takes {taken >> 20} MiB")

    def _is_harmless(self, value: Any) -> bool:
        return (
            any(value is one for one in (*self.registered, *_HARMLESS))
            or isinstance(value, _PLAIN)
            or (isinstance(value, type) and issubclass(value, Exception))
        )

    def read(self, pickled: bytes, tensors: list[Any]) -> str:
        """How the pickle ended: a value's type or the error's text. Raises Found."""
        outcome = ""
        with self._watching():
            try:
                value = internal.deserialize(pickled, tensors)
                outcome = type(value).__name__
                self._check_request(value)
                value = None
            except pickle.UnpicklingError as error:
                outcome = str(error)
        if "be read: MemoryError" in outcome:
            raise Found(outcome)
        for module, name, found in self.resolved:
            if not self._is_harmless(found):
                raise Found(f"resolved: {module}.{name}, which is {found!r}")
        return outcome

    def _check_request(self, value: Any) -> None:
        if isinstance(value, internal.RemoteException):
            if not issubclass(value.exception_type, Exception):
                raise Found(f"an answer raises {value.exception_type}")
            return
        is_request = all(hasattr(value, name) for name in ("func", "args", "kwargs"))
        if is_request and not any(value.func is one for one in self.registered):
            raise Found(f"a request runs {value.func!r}")
