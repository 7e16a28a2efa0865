"""Publishing modules: other workers call them as ``worker/name``, from Python, TorchScript and C++.

::

    weft.publish("encoder", torch.jit.script(encoder))          # at "server"
    y = weft.call("server/encoder", x)                          # anywhere in the group
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from weft import _C
from weft._remote.annotations import restoring
from weft._remote.named_tuples import names_in
from weft._remote.results import checked
from weft.options import check_int, check_seconds

NEWEST = 0
LONGEST_DELAY = 3600.0
MOST_REQUESTS = 2**31 - 1
LAST_VERSION = 2**63 - 1
GROUPS_TIMEOUT = -1.0


@dataclass(frozen=True)
class Batch:
    """Serves many requests with one run of the module: see :func:`publish`.

    ::

        batch = weft.Batch(max_requests=8, max_delay=0.001)
        weft.publish("batched", torch.jit.script(nn.Linear(2, 2)), batch=batch)

    Attributes:
        max_requests: a run begins when this many requests wait,
        max_delay: or when the first of them has waited this many seconds, at most 3600.

    Raises:
        TypeError, ValueError: ``max_requests`` is no positive int, or ``max_delay`` no number of
            seconds, or more than 3600.
    """

    max_requests: int = 32
    max_delay: float = 200e-6

    def __post_init__(self) -> None:
        check_int("max_requests", self.max_requests, most=MOST_REQUESTS)
        if check_seconds("max_delay", self.max_delay) > LONGEST_DELAY:
            raise ValueError(f"max_delay must be at most 3600 s, got {self.max_delay!r}")


@dataclass(frozen=True)
class PublishedInfo:
    """One version of a published name.

    ::

        for info in weft.published("worker0"):
            print(info.name, info.version, info.methods)

    Attributes:
        name: the name, without the worker.
        version: its number, from 1.
        methods: the signatures of its methods, such as ``forward(Tensor x) -> Tensor``.
    """

    name: str
    version: int
    methods: tuple[str, ...]


def _signature(name: str, function: Callable[..., Any]) -> str:
    try:
        return f"{name}{inspect.signature(function)}"
    except (TypeError, ValueError):
        return f"{name}(...)"


# For the server: name, signature, the NamedTuples in the result, the function to call.
_Method = tuple[str, str, str, Callable[..., Any]]


def _method(name: str, function: Callable[..., Any], annotated: Callable[..., Any]) -> _Method:
    signature = _signature(name, annotated)
    return name, signature, names_in(annotated), checked(restoring(function, annotated), annotated)


def _python_methods(module: Any, names: Iterable[str]) -> list[_Method]:
    if not isinstance(module, torch.nn.Module):
        if not callable(module):
            kind = type(module).__name__
            raise TypeError(f"only a module or a function can be published, got {kind}")
        return [_method("forward", module, module)]
    # The module itself instead of its forward: __call__ runs the module's hooks.
    found = [_method("forward", module, module.forward)]
    for name in names:
        method = getattr(module, name)
        found.append(_method(name, method, method))
    return found


def publish(
    name: str,
    module: torch.nn.Module | Callable[..., Any],
    *,
    version: int | None = None,
    no_grad: bool = False,
    batch: Batch | None = None,
    methods: Iterable[str] = (),
) -> int:
    """Lets every worker of the group call ``module`` as ``worker/name``; returns the version.

    A scripted module (``torch.jit.script``, ``torch.jit.load``) or function runs as TorchScript: in
    parallel on the worker threads, without the GIL, with all of its methods. Anything else runs as
    Python, under the GIL: a plain ``nn.Module`` with ``forward`` and the ``methods`` named, or a
    function. In both cases only values of TorchScript's types travel, so no peer's Python is
    unpickled: every ``request_policy`` serves published modules.

    ::

        weft.publish("linear", torch.jit.script(torch.nn.Linear(2, 2)))
        y = weft.call("worker0/linear", torch.ones(2))

    Args:
        name: letters, digits, ``_ . -``.
        module: the module or function. It is not copied: training it changes what is served.
        version: by default the next one. Versions live side by side; a caller who names none
            gets the newest.
        no_grad: run without recording for autograd; a caller in a distributed autograd context
            then gets no gradients. Scripted modules only.
        batch: collect requests and run once for all of them: for a scripted ``forward`` that takes
            tensors and treats their rows independently. Implies ``no_grad``.
        methods: further methods of a plain module.

    Returns:
        The version.

    Raises:
        TypeError: ``module`` cannot be called, ``batch`` or ``no_grad`` is given for a module that
            is not scripted, ``no_grad`` for a function, or ``methods`` for what is no plain module;
            ``batch`` is no Batch, ``methods`` a string, or ``version`` no int.
        ValueError: ``version`` is below 1 or above 2**63 - 1.
        RuntimeError: the name or the version is refused; the text says why.
    """
    number = NEWEST if version is None else check_int("version", version, most=LAST_VERSION)
    if not isinstance(batch, (Batch, type(None))):
        raise TypeError(f"batch must be a weft.Batch, got {batch!r}")
    if isinstance(methods, str):
        raise TypeError(f"methods must be names of methods, as in ({methods!r},); got {methods!r}")
    pair = None if batch is None else (batch.max_requests, batch.max_delay)
    scripted = isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction))
    methods = tuple(methods)
    if methods and (scripted or not isinstance(module, torch.nn.Module)):
        raise TypeError(
            "methods names further methods of a plain module: a scripted module serves all that it "
            "has, and a function has none"
        )
    if isinstance(module, torch.jit.ScriptModule):
        return _C.publish_module(name, module._c, number, no_grad, pair)
    if isinstance(module, torch.jit.ScriptFunction):
        if no_grad:
            raise TypeError(
                "no_grad is for scripted modules: use torch.no_grad() in the function, or script a "
                "module that calls it"
            )
        return _C.publish_function(name, module, number, pair)
    if batch is not None or no_grad:
        raise TypeError("batch and no_grad are for scripted modules: use torch.jit.script first")
    return _C.publish_python(name, _python_methods(module, methods), number)


def unpublish(name: str, version: int | None = None) -> None:
    """Withdraws one version of ``name``, or all. Calls that have begun run to their end.

    ::

        weft.unpublish("linear")

    Args:
        name: the name, without the worker.
        version: the version; None for all.

    Raises:
        TypeError, ValueError: ``version`` is no version.
        RuntimeError: this process publishes nothing by that name, or not that version.
    """
    number = NEWEST if version is None else check_int("version", version, most=LAST_VERSION)
    _C.unpublish(name, number)


def published(worker: str | None = None, timeout: float = GROUPS_TIMEOUT) -> list[PublishedInfo]:
    """What this process, or ``worker``, publishes, with the signatures of the methods.

    ::

        for info in weft.published("worker0"):
            print(info.name, info.version, *info.methods)

    Args:
        worker: the name of a worker; None for this process, which need not have joined a group.
        timeout: seconds; 0 for none; by default the group's.

    Raises:
        RuntimeError: there is no such worker, it is lost, or the timeout ran out.
    """
    found = _C.published() if worker is None else _C.published_by(worker, timeout)
    return [PublishedInfo(one.name, one.version, tuple(one.methods)) for one in found]
