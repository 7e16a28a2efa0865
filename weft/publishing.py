"""Published modules: what other workers may call as ``worker/name``, from Python, TorchScript and C++.

::

    weft.publish("encoder", torch.jit.script(encoder))          # at "server"
    y = weft.call("server/encoder", x)                          # anywhere in the group
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.rpc import RRef

from weft import _C
from weft._remote.named_tuples import names_in, restoring

NEWEST = 0
GROUPS_TIMEOUT = -1.0


@dataclass(frozen=True)
class Batch:
    """Serve many requests with one run: see :func:`publish`.

    A run begins when ``max_requests`` wait, or when the first has waited ``max_delay`` seconds.
    """

    max_requests: int = 32
    max_delay: float = 200e-6


@dataclass(frozen=True)
class PublishedInfo:
    """One version of a published name, with the signatures of its methods."""

    name: str
    version: int
    methods: tuple[str, ...]


def _signature(name: str, function: Callable[..., Any]) -> str:
    try:
        return f"{name}{inspect.signature(function)}"
    except (TypeError, ValueError):
        return f"{name}(...)"


# As the server takes it: name, signature, the NamedTuples in its result, what is called.
_Method = tuple[str, str, str, Callable[..., Any]]


def _method(name: str, function: Callable[..., Any], annotated: Callable[..., Any]) -> _Method:
    signature = _signature(name, annotated)
    return name, signature, names_in(annotated), restoring(function, annotated)


def _python_methods(module: Any, names: Iterable[str]) -> list[_Method]:
    if not isinstance(module, torch.nn.Module):
        if not callable(module):
            raise TypeError(f"a module or a function can be published, got {type(module).__name__}")
        return [_method("forward", module, module)]
    # forward by way of __call__, for the module's hooks.
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
    function. In either case only values that TorchScript knows come in and go out, so that no peer's
    Python is ever unpickled: every ``request_policy`` serves published modules.

    Args:
        name: letters, digits, ``_ . -``.
        module: what is called. It is not copied: training it changes what is served.
        version: the next one if not given. Versions live side by side; a caller who
            names none gets the newest.
        no_grad: run without recording for autograd. Not for callers in a distributed
            autograd context, who would get no gradients. Scripted modules only.
        batch: collect requests and run once for all: for a scripted ``forward`` that takes tensors
            and treats their rows independently. Implies ``no_grad``.
        methods: of a plain module, besides ``forward``.
    """
    number = NEWEST if version is None else version
    pair = None if batch is None else (batch.max_requests, batch.max_delay)
    if isinstance(module, torch.jit.ScriptModule):
        return _C.publish_module(name, module._c, number, no_grad, pair)
    if isinstance(module, torch.jit.ScriptFunction):
        return _C.publish_function(name, module, number, pair)
    if batch is not None or no_grad:
        raise TypeError("batch and no_grad are for scripted modules: use torch.jit.script first")
    return _C.publish_python(name, _python_methods(module, methods), number)


def unpublish(name: str, version: int | None = None) -> None:
    """Takes back one version, or all of ``name``. Calls that have begun end as they began."""
    _C.unpublish(name, NEWEST if version is None else version)


def published(worker: str | None = None, timeout: float = GROUPS_TIMEOUT) -> list[PublishedInfo]:
    """What this process publishes, or another worker, with the methods' signatures."""
    rows = _C.published() if worker is None else _C.published_by(worker, timeout)
    return [PublishedInfo(name, version, tuple(methods)) for name, version, methods in rows]


def parse_target(target: str) -> tuple[str, str, int]:
    """``"worker/name"`` or ``"worker/name@version"`` as (worker, name, version); 0 is the newest."""
    worker, slash, rest = target.partition("/")
    name, at, number = rest.partition("@")
    if not (worker and slash and name) or (at and not (number.isdigit() and int(number) > 0)):
        raise ValueError(f'"worker/name" or "worker/name@version" is wanted, got "{target}"')
    return worker, name, int(number) if at else NEWEST


def call(
    target: str,
    *args: Any,
    method: str = "forward",
    timeout: float = GROUPS_TIMEOUT,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Calls what is published as ``"worker/name"`` (``@version``) and returns the result.

    NamedTuples in the result's type come as such: of the class of that name and these fields if this
    process has it, else of one like it.

    Args:
        target: ``"worker/name"`` or ``"worker/name@version"``.
        args: values that TorchScript knows; they are converted to the types of the signature.
        method: of the module; ``forward`` for a function.
        timeout: seconds; 0 for none; the group's if not given.
        kwargs: arguments by name.

    Raises:
        RuntimeError: nothing of that name there, another signature, an error in the
            module, a timeout, or a lost worker: the text says which.
    """
    worker, name, version = parse_target(target)
    return _C.call_published(worker, name, args, dict(kwargs or {}), method, version, timeout)


def call_async(
    target: str,
    *args: Any,
    method: str = "forward",
    timeout: float = GROUPS_TIMEOUT,
    kwargs: Mapping[str, Any] | None = None,
) -> torch.futures.Future[Any]:
    """As :func:`call`, but returns a future at once; errors show in its ``wait()``."""
    worker, name, version = parse_target(target)
    return _C.call_published_async(worker, name, args, dict(kwargs or {}), method, version, timeout)


def call_remote(
    target: str,
    *args: Any,
    method: str = "forward",
    timeout: float = GROUPS_TIMEOUT,
    kwargs: Mapping[str, Any] | None = None,
) -> RRef[Any]:
    """As :func:`call`, but the result stays there and an RRef to it comes back.

    Fetched by it, NamedTuples are plain tuples.
    """
    worker, name, version = parse_target(target)
    return _C.call_published_remote(
        worker, name, args, dict(kwargs or {}), method, version, timeout
    )
