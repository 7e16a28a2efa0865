"""The request policy ``registered``: peers may call only registered Python functions.

torch unpickles a request to learn which function it names. Under this policy the unpickler
resolves only registered objects and the few names that torch's own RPC pickles contain. A request
for anything else fails before any of its code runs.
"""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

_objects: dict[tuple[str, str], Any] = {}

# What a pickle of torch.distributed.rpc.internal refers to besides user code. Each of these only
# rebuilds a value from its parts.
_ALLOWED = {
    "torch.distributed.rpc.internal": {"PythonUDF", "RemoteException", "_InternalRPCPickler"},
    "torch": {"Size", "device"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset", "slice", "range", "complex", "bytearray"},
    "weft._remote.named_tuples": {"remade"},
}
# Static methods that torch's pickles reach with getattr through their class.
_ALLOWED_ATTRIBUTES = {
    ("_InternalRPCPickler", "_tensor_receiver"),
    ("_InternalRPCPickler", "_py_rref_receiver"),
}
# Constants of torch, and the types of built-in exceptions (a RemoteException names one).
_HARMLESS_MODULES = {"torch": torch, "builtins": builtins}
_HARMLESS_VALUES = (torch.dtype, torch.layout, torch.memory_format)


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
        _objects[(module, qualified)] = target
        return target

    return register if function is None else register(function)


def registered_functions() -> list[str]:
    """The names that peers may call, as ``module:qualified.name``, sorted."""
    return sorted(f"{module}:{name}" for module, name in _objects)


def _restricted_getattr(owner: Any, attribute: str) -> Any:
    """``getattr`` for the static methods that torch's pickles reach through their class."""
    key = (getattr(owner, "__name__", ""), attribute)
    if key in _ALLOWED_ATTRIBUTES:
        return getattr(owner, attribute)
    raise pickle.UnpicklingError(f"the request policy here is 'registered': {key} is refused")


class RestrictedUnpickler(pickle.Unpickler):
    """Resolves registered objects and the parts of torch's own pickles; refuses the rest."""

    def find_class(self, module: str, name: str) -> Any:
        """The object of this name, if a request may refer to it."""
        found = _objects.get((module, name))
        if found is not None:
            return found
        if (module, name) == ("builtins", "getattr"):
            return _restricted_getattr
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        candidate = getattr(_HARMLESS_MODULES.get(module), name, None)
        if isinstance(candidate, _HARMLESS_VALUES) or (
            isinstance(candidate, type) and issubclass(candidate, BaseException)
        ):
            return candidate
        raise pickle.UnpicklingError(
            f"the request policy here is 'registered', and {module}.{name} was not given to "
            "weft.register_function"
        )
