"""Calling what a worker has published: the caller's end of :mod:`weft.publishing`.

::

    y = weft.call("server/encoder", x)
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.rpc import RRef

from weft import _C
from weft._observe.group import TIMED_OUT
from weft.options import check_seconds
from weft.publishing import GROUPS_TIMEOUT, LAST_VERSION, NEWEST, PublishedInfo, published


def wait_published(target: str, timeout: float = 60.0) -> PublishedInfo:
    """Waits until a worker has published a name: one may join and call before the other publishes.

    ::

        weft.wait_published("worker0/linear", timeout=30)

    Args:
        target: ``"worker/name"`` or ``"worker/name@version"``.
        timeout: seconds.

    Returns:
        What is published there: that version, or the newest.

    Raises:
        ValueError: ``target`` has another form.
        TimeoutError: it was not published in time.
        RuntimeError: there is no such worker, or it is lost.
    """
    worker, name, version = parse_target(target)
    until = time.monotonic() + check_seconds("timeout", timeout)
    pause = 0.01  # grows: the worker is asked often at first, and then now and again
    while True:
        left = until - time.monotonic()
        try:
            asked = published(worker, max(left, 1.0))  # one who answers is asked once at least
        except RuntimeError as error:
            if not str(error).startswith(TIMED_OUT):
                raise
            asked = []
        found = [info for info in asked if info.name == name]
        if version:
            found = [info for info in found if info.version == version]
        if found:
            return max(found, key=lambda info: info.version)
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{target} was not published within {timeout:g} s")
        time.sleep(min(pause, left))
        pause = min(2 * pause, 0.5)


def parse_target(target: str) -> tuple[str, str, int]:
    """``"worker/name"`` or ``"worker/name@version"`` as (worker, name, version); 0 is the newest."""
    worker, slash, rest = target.partition("/")
    name, at, number = rest.partition("@")
    digits = number.isascii() and number.isdigit() and len(number) <= len(str(LAST_VERSION))
    version = int(number) if digits else 0
    if not (worker and slash and name) or (at and not 1 <= version <= LAST_VERSION):
        raise ValueError(f'expected "worker/name" or "worker/name@version", got "{target}"')
    return worker, name, version if at else NEWEST


def call(
    target: str,
    *args: Any,
    method: str = "forward",
    timeout: float = GROUPS_TIMEOUT,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Calls what is published as ``"worker/name"`` and returns the result.

    A NamedTuple in the result has this process's class of that name and fields, or, without one, a
    class like it.

    ::

        y = weft.call("worker0/linear", torch.ones(2), timeout=10)

    Args:
        target: ``"worker/name"`` or ``"worker/name@version"``.
        args: values of TorchScript's types; they are converted to the types of the signature.
        method: the method of the module; ``forward`` for a function.
        timeout: seconds; 0 for none; by default the group's.
        kwargs: arguments by name.

    Raises:
        ValueError: ``target`` has another form.
        RuntimeError: nothing is published there by that name, the arguments do not fit, the module
            raised, the timeout ran out, or the worker is lost: the text says which.
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
    """As :func:`call`, but returns a future at once.

    ::

        future = weft.call_async("worker0/linear", torch.ones(2))
        y = future.wait()

    Args:
        target: ``"worker/name"`` or ``"worker/name@version"``.
        args: values of TorchScript's types; they are converted to the types of the signature.
        method: the method of the module; ``forward`` for a function.
        timeout: seconds; 0 for none; by default the group's.
        kwargs: arguments by name.

    Raises:
        ValueError: ``target`` has another form. What else :func:`call` raises, the future's
            ``wait()`` does.
    """
    worker, name, version = parse_target(target)
    return _C.call_published_async(worker, name, args, dict(kwargs or {}), method, version, timeout)


def call_remote(
    target: str,
    *args: Any,
    method: str = "forward",
    timeout: float = GROUPS_TIMEOUT,
    kwargs: Mapping[str, Any] | None = None,
) -> RRef[Any]:
    """As :func:`call`, but the result stays at the worker, and an RRef to it comes back.

    NamedTuples fetched through the RRef are plain tuples.

    ::

        rref = weft.call_remote("worker0/linear", torch.ones(2))
        y = rref.to_here()

    Args:
        target: ``"worker/name"`` or ``"worker/name@version"``.
        args: values of TorchScript's types; they are converted to the types of the signature.
        method: the method of the module; ``forward`` for a function.
        timeout: seconds; 0 for none; by default the group's.
        kwargs: arguments by name.

    Raises:
        ValueError: ``target`` has another form. What else :func:`call` raises, the RRef's
            ``to_here()`` does.
    """
    worker, name, version = parse_target(target)
    return _C.call_published_remote(
        worker, name, args, dict(kwargs or {}), method, version, timeout
    )
