"""How workers find each other's objects: a worker publishes one, the others attach to it.

A worker may ask before the other is ready; it then waits, at most for the timeout of an RPC, and no
thread is blocked for it.
"""

from __future__ import annotations

from typing import Any

import torch.distributed.rpc as rpc
from torch.futures import Future

_published: Future[Any] = Future()


def publish(value: Any) -> None:
    """Makes this value the answer to `attach`, once per process."""
    _published.set_result(value)


@rpc.functions.async_execution
def _here() -> Future[Any]:
    return _published


def attach(worker: str) -> Any:
    """What this worker publishes, as soon as it does."""
    return rpc.rpc_sync(worker, _here)
