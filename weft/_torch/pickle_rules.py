"""What a pickle may call under the request policy ``registered``, and with which arguments.

Each check raises UnpicklingError. None runs code of the pickle's values.
"""

from __future__ import annotations

import builtins
import collections
import enum
import functools
import operator
import pickle
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.rpc import internal

from weft import _C
from weft._remote.named_tuples import remade
from weft._torch.request_policy import is_registered, refused

_MAX_TYPE_NAME = 1 << 12  # letters in the type of an RRef, which torch parses by recursion
_MAX_BITS = 1 << 12  # of a number that is calculated with: CPython divides in quadratic time
_MAX_MEMBERS = 1 << 12  # of a class of flags, with the combinations of them that it keeps

SIZED = (tuple, list, dict, set, frozenset, bytes, bytearray)

# CPython believes what these say of themselves when it shows them: it reads the start of a text wherever
# that is, prints as many marks, imports a module, shows each of a group. Python 3.10 has no groups.
_BELIEVED: Any = (
    UnicodeError,
    SyntaxError,
    ImportError,
    getattr(builtins, "BaseExceptionGroup", ()),
)

_PICKLER = internal._InternalRPCPickler
# The methods that torch's pickles reach with getattr through their class. They are kept, so that each
# pickle gets the same objects.
_RECEIVERS = {name: getattr(_PICKLER, name) for name in ("_tensor_receiver", "_py_rref_receiver")}


def name_of(value: Any) -> str:
    """A name for error messages. A repr could run code, or take for ever."""
    named = isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType))
    return str(value.__qualname__) if named else f"a {type(value).__qualname__}"


def restricted_getattr(owner: Any, attribute: str) -> Any:
    """``getattr`` for the methods that torch's pickles reach through their class."""
    if owner is _PICKLER and type(attribute) is str and attribute in _RECEIVERS:
        return _RECEIVERS[attribute]
    raise refused(f"and a pickle may not read attributes of {name_of(owner)}")


def _of_types(*forms: tuple[type, ...]) -> Callable[..., bool]:
    """The check that the arguments are exactly of one of these lists of types."""
    return lambda *args: tuple(map(type, args)) in forms


def _is_rref(*args: Any) -> bool:
    parts = args[0] if len(args) == 1 and type(args[0]) is tuple else ()
    if [type(one) for one in parts] != [int] * 6 + [str] or len(parts[6]) > _MAX_TYPE_NAME:
        return False
    # torch believes that whoever sends an RRef has forked it; else a message could take the place of
    # another worker's reference, and end that.
    forked_on, parent = parts[3], parts[5]
    sender = _C._sender_of_message()
    return bool(forked_on == parent and (sender is None or sender == parent))


def _is_named_tuple(*args: Any) -> bool:
    kinds = [type(one) for one in args]
    return kinds == [str, tuple, tuple] and all(type(one) is str for one in args[1])


def _is_small(*args: Any) -> bool:
    return not any(
        type(one) is range  # some of these calls would read it to its end
        or (type(one) is int and one.bit_length() > _MAX_BITS)
        for one in args
    )


_is_bytes = _of_types((), (bytes,))  # bytearray(n) has n bytes

# What a pickle may call besides registered classes, and the check of the arguments.
_CALLS: dict[int, Callable[..., bool]] = {
    id(_RECEIVERS["_tensor_receiver"]): _of_types((int,)),
    id(_RECEIVERS["_py_rref_receiver"]): _is_rref,
    id(restricted_getattr): lambda *args: len(args) == 2,
    id(bytearray): _is_bytes,
    id(remade): _is_named_tuple,
    id(collections.OrderedDict): _of_types(()),  # its items follow as items
    id(torch.serialization._get_layout): _of_types((str,)),
    id(torch.device): _of_types((str,), (str, int)),  # a number alone means an accelerator
    **{id(one): _is_small for one in (slice, range, complex, torch.Size)},
}


# What a registered class may be called with if its __new__ is that of one of these classes of Python's.
_MAKERS: tuple[tuple[type | tuple[type, ...], Callable[..., bool]], ...] = (
    (str, _of_types((), (str,))),  # Python would import an encoding, and print a list
    ((bytes, bytearray), _is_bytes),
    (SIZED, _is_small),
)


def check_maker(cls: type, args: tuple[Any, ...]) -> None:
    """Raises if a registered class would make a large value from small arguments, or an unsound one."""
    if issubclass(cls, _BELIEVED):
        raise refused(f"and a pickle may not make a {name_of(cls)}: Python believes what it says")
    if isinstance(cls.__new__, types.BuiltinFunctionType):
        check = next((check for bases, check in _MAKERS if issubclass(cls, bases)), None)
        if check is not None and not check(*args):
            raise refused(f"and a pickle may not make a {name_of(cls)} of these arguments")


def check_member(cls: type[enum.Enum], args: tuple[Any, ...]) -> None:
    """Raises unless the argument is a value of the enum.

    Otherwise Enum would make the argument's repr for its error, or a new class of several arguments. It
    keeps each combination of flags that it makes.
    """
    members = cls._value2member_map_
    if len(args) == 1 and args[0] in members:
        return
    if not (issubclass(cls, enum.Flag) and len(args) == 1 and _is_combination(cls, args[0])):
        raise refused(f"and {name_of(cls)} has no such member")
    if len(members) >= _MAX_MEMBERS:
        raise refused(f"and {name_of(cls)} has {_MAX_MEMBERS} members and combinations already")


def _is_combination(cls: type[enum.Flag], value: Any) -> bool:
    """Whether the number has only bits of members."""
    bits = functools.reduce(operator.or_, (one.value for one in cls.__members__.values()), 0)
    return type(value) is int and not value & ~bits


def not_registered(cls: Any) -> pickle.UnpicklingError:
    """The error of a pickle that makes an object of this class."""
    return refused(
        f"and a pickle may not make a {name_of(cls)}: the class was not given to weft.register_function"
    )


def check_call(function: Any, args: Any) -> None:
    """Raises unless a pickle may call this function with these arguments while it is read."""
    if type(args) is not tuple:
        raise refused("and arguments must be a tuple")
    if isinstance(function, type) and is_registered(function):
        return
    check = _CALLS.get(id(function))
    if check is None and isinstance(function, type):
        raise not_registered(function)
    if check is None or not check(*args):
        raise refused(
            f"and a pickle may call only registered classes, not {name_of(function)} with these arguments"
        )


def is_fresh(made: Any, cls: Any) -> bool:
    """Whether a call of this class has just made the object. A __new__ in Python may return another one."""
    return (
        isinstance(cls, type)
        and type(made) is cls
        and not isinstance(made, type)  # of a metaclass that was registered
        and type(cls).__call__ is type.__call__
        and isinstance(cls.__new__, types.BuiltinFunctionType)
    )


def check_request(value: Any) -> None:
    """Raises if torch would call something that is not registered.

    It calls the function of a request, and the type of exception of a RemoteException.
    """
    if isinstance(value, internal.RemoteException):
        kind = value.exception_type
        if type(value.msg) is not str or not (
            isinstance(kind, type) and issubclass(kind, Exception)
        ):
            raise refused("and a RemoteException must have a text and a type of exception")
    elif all(hasattr(value, name) for name in internal.PythonUDF._fields):
        # torch looks for these three attributes, not for the class.
        if not is_registered(value.func):
            raise refused(f"and {name_of(value.func)} was not given to weft.register_function")
        if type(value.args) not in (tuple, list) or type(value.kwargs) is not dict:
            raise refused("and a request must have a tuple and a dict of arguments")
