"""``weft.init_rpc``: torch's, with the backend WEFT and options by name; and ``weft.wait_all_workers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed.rpc as rpc
from torch.distributed.rpc import api, backend_registry

from weft.options import RpcBackendOptions, RpcOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack


def init_rpc(
    name: str,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: RpcBackendOptions | None = None,
    **options: Unpack[RpcOptions],
) -> None:
    """``torch.distributed.rpc.init_rpc`` with the backend WEFT.

    ::

        weft.init_rpc("worker0", rank=0, world_size=1, request_policy="script")

    Args:
        name: the name of this worker.
        rank: the rank of this worker.
        world_size: the number of workers; None for a dynamic group. A group of 1 needs no rank, and
            no ``init_method`` among options by name: it then takes a free port and ignores the
            environment.
        rpc_backend_options: the options as one object,
        options: or by name, as :class:`weft.RpcBackendOptions` takes them.

    Raises:
        TypeError: both forms of options are given, or an option is unknown.
        ValueError: an option is out of range.
        RuntimeError: a worker did not join in time, or failed authentication.
    """
    alone = world_size == 1
    if alone and rank == -1:
        rank = 0
    if rpc_backend_options is None:
        if alone:
            options.setdefault("init_method", "tcp://127.0.0.1:0")
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
    """Blocks until every worker has called this and no call is in flight anywhere.

    Unlike after :func:`torch.distributed.rpc.shutdown`, the group continues to serve calls.

    ::

        future = rpc.rpc_async("worker0", torch.add, args=(torch.ones(2), 1))
        weft.wait_all_workers(timeout=60)
        assert future.done()

    Args:
        timeout: seconds; 0 waits as long as the missing workers live.

    Raises:
        RuntimeError: the timeout ran out; the text names the missing workers.
    """
    api._wait_all_workers(timeout)
