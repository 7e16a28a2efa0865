"""The API of the original RPC design, for programs and people that know it."""

from __future__ import annotations

from typing import Any

import torch.distributed.rpc as rpc
from torch.distributed.rpc import api, backend_registry

from weft.options import RpcBackendOptions


def init_rpc(
    name: str,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
    **options: Any,
) -> None:
    """``torch.distributed.rpc.init_rpc`` with the backend WEFT.

    Options may be given as one object or by name: ``weft.init_rpc("a", rank=0, world_size=2,
    request_policy="script")``.
    """
    if rpc_backend_options is None:
        rpc_backend_options = RpcBackendOptions(**options)
    elif options:
        raise TypeError(
            "give either rpc_backend_options or options by name, not both: "
            f"{', '.join(sorted(options))}"
        )
    rpc.init_rpc(
        name,
        backend=backend_registry.BackendType["WEFT"],
        rank=rank,
        world_size=world_size,
        rpc_backend_options=rpc_backend_options,
    )


def wait_all_workers(timeout: float = api.DEFAULT_SHUTDOWN_TIMEOUT) -> None:
    """Blocks until every worker has come here and no call is in flight anywhere.

    Unlike :func:`torch.distributed.rpc.shutdown` it ends nothing: calls go on working after it.
    ``timeout`` 0 waits as long as the missing workers live.

    Raises:
        RuntimeError: when the timeout runs out; the text names who is missing.
    """
    api._wait_all_workers(timeout)
