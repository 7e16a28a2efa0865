"""The request policy ``registered``: peers may call only registered Python functions.

torch unpickles a request to learn which function it names. Under this policy the unpickler
(``restricted_unpickler.py``) resolves only what is here: registered objects and the few names that
torch's own RPC pickles contain. A request for anything else fails before any of its code runs.
"""

from __future__ import annotations

import builtins
import importlib
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from weft._torch.printable import printable

F = TypeVar("F", bound=Callable[..., Any])

_objects: dict[tuple[str, str], Any] = {}
# By identity: what equals a registered object is not registered.
_registered: dict[int, Any] = {}

# What a pickle of torch.distributed.rpc.internal refers to besides user code. Each of these only
# rebuilds a value from its parts.
_ALLOWED = {
    "torch.distributed.rpc.internal": {"PythonUDF", "RemoteException", "_InternalRPCPickler"},
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset", "slice", "range", "complex", "bytearray"},
    "weft._remote.named_tuples": {"remade"},
    "weft.errors": {"RemoteError"},
}
# Constants of torch, and the types of built-in exceptions (a RemoteException names one). SystemExit and
# the like are not among them: a peer's answer would end the caller.
_HARMLESS_MODULES: dict[str, Any] = {"torch": torch, "builtins": builtins}
_HARMLESS_VALUES = (torch.dtype, torch.layout)


def register_function(function: F | None = None, *, name: str | None = None) -> Any:
    """Allows peers to call ``function`` under the request policy ``"registered"``.

    Usable as a decorator::

        @weft.register_function
        def double(x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    Args:
        function: a function, or a class that peers may construct.
        name: the name in the caller's pickle, ``"module:qualified.name"``, for a function that
            callers import from elsewhere; by default its module and qualified name.

    Returns:
        The function.

    Raises:
        TypeError: ``function`` is not callable.
    """

    def register(target: F) -> F:
        if not callable(target):
            raise TypeError(f"register_function needs a function or class, got {target!r}")
        if name is not None:
            module, _, qualified = name.partition(":")
        else:
            module, qualified = target.__module__, target.__qualname__
        _registered[id(target)] = target
        _objects[(module, qualified)] = target
        return target

    return register if function is None else register(function)


def registered_functions() -> list[str]:
    """The names that peers may call, as ``module:qualified.name``, sorted.

    ::

        weft.register_function(abs)
        assert "builtins:abs" in weft.registered_functions()
    """
    return sorted(f"{module}:{name}" for module, name in _objects)


def is_registered(value: Any) -> bool:
    """Whether this very object was given to :func:`register_function`."""
    return id(value) in _registered


def refused(what: str) -> pickle.UnpicklingError:
    """The error of a pickle that does what the policy does not allow."""
    # torch logs the text, in which a pickle chooses names.
    shown = printable(what).replace("\n", "\n    ")
    return pickle.UnpicklingError(f"the request policy here is 'registered', {shown}")


def resolve(module: str, name: str) -> Any:
    """The object of this name, if a pickle may refer to it."""
    found = _objects.get((module, name))
    if found is not None:
        return found
    if name in _ALLOWED.get(module, ()):
        return getattr(importlib.import_module(module), name)
    # Its pickle names it "torch.channels_last", in whichever module has an attribute torch.
    memory_format = vars(torch).get(name.removeprefix("torch."))
    if isinstance(memory_format, torch.memory_format):
        return memory_format
    # Not getattr: torch imports some of its modules when their names are asked for.
    candidate = vars(_HARMLESS_MODULES.get(module, object)).get(name)
    if isinstance(candidate, _HARMLESS_VALUES) or (
        isinstance(candidate, type) and issubclass(candidate, Exception)
    ):
        return candidate
    raise refused(f"and {module}.{name} was not given to weft.register_function")
