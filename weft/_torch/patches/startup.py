"""Patches of how a worker joins: ``init_rpc`` and the Store that it makes."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed.rpc as rpc
from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.rpc.constants import DEFAULT_RPC_TIMEOUT_SEC

from weft import _C
from weft._torch.interruptible import interruptible
from weft._torch.log import warn
from weft._torch.patches.patch import Function, patch
from weft._torch.threads import started

INIT_RPC = "torch.distributed.rpc:init_rpc"
INIT_RPC_PARAMETERS = "(name, backend=None, rank=-1, world_size=None, rpc_backend_options=None)"

_joining = threading.local()  # .timeout: set while a thread is in init_rpc for Weft
_TOLD_EVERY = 5.0  # seconds
_WITHOUT = "init_rpc over Weft waits for missing workers up to half an hour, without naming them."


@patch(INIT_RPC, INIT_RPC_PARAMETERS, without=_WITHOUT)
def init_rpc(
    upstream: Function,
    name: str,
    backend: Any = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
) -> None:
    """Bounds by ``rpc_timeout`` how long a worker waits for the Store; see :func:`create_store`.

    A try that fails does not count: torch numbers the groups of a process, and the next try would be
    in another group than the first.
    """
    ours = isinstance(rpc_backend_options, _C.RpcBackendOptionsBase)
    ours = ours or getattr(backend, "name", None) == "WEFT"
    if ours:
        seconds = getattr(rpc_backend_options, "rpc_timeout", 0) or DEFAULT_RPC_TIMEOUT_SEC
        _joining.timeout = timedelta(seconds=seconds)
    joined = rpc._init_counter
    try:
        upstream(name, backend, rank, world_size, rpc_backend_options)
    except BaseException:
        if ours:
            rpc._init_counter = joined
        raise
    finally:
        _joining.timeout = None


@patch(
    "torch.distributed.rendezvous:_create_c10d_store",
    "(hostname, port, rank, world_size, timeout, ...)",
    without=_WITHOUT,
    caller="torch.distributed.rendezvous:_env_rendezvous_handler",
)
def create_store(
    upstream: Function,
    hostname: str,
    port: int,
    rank: int,
    world_size: int,
    timeout: Any,
    *rest: Any,
    **more: Any,
) -> Any:
    """Lets rank 0 of a Weft group leave the Store's constructor at once.

    With ``env://`` and ``tcp://`` torch's rank 0 waits in its TCPStore for all workers, and the
    others wait for rank 0: half an hour, in silence. Weft's agent waits itself, and names who is
    missing.
    """
    if 0 < world_size <= rank:  # the Store would wait half an hour for rank 0
        raise ValueError(f"rank {rank} is out of range for world_size {world_size}")
    limit = getattr(_joining, "timeout", None)
    if limit is not None and world_size == 1 and port == 0:
        # A group of one. Under torchrun, torch would look for torchrun's Store there.
        return TCPStore(hostname, port, world_size, is_master=True, timeout=limit)
    # Rank 0 too: it serves the Store itself, but may not reach it by the master's name.
    tells = limit is not None or _group_is_wefts(sys._getframe())
    nobody = _told_while_nobody_listens(hostname, port, limit or timeout)
    with nobody if tells else contextlib.nullcontext():
        if limit is None:
            return upstream(hostname, port, rank, world_size, timeout, *rest, **more)
        # -1: the store does not count its users
        return interruptible(upstream, hostname, port, rank, -1, limit, *rest, **more)


def _advice(host: str, port: int) -> str:
    """Under torchrun no rank serves a Store, so that one elsewhere than torchrun's is a mistake."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ""
    served = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    if served == f"{host}:{port}":
        return ""
    return f'; under torchrun no rank serves a Store: use that of {served}, init_method="env://"'


def _group_is_wefts(frame: FrameType | None) -> bool:
    """Whether an init_process_group that asks for weft makes this Store."""
    while frame is not None and frame.f_code.co_name != "init_process_group":
        frame = frame.f_back
    return frame is not None and "weft" in str(frame.f_locals.get("backend")).lower()


@contextlib.contextmanager
def _told_while_nobody_listens(host: str, port: int, limit: timedelta) -> Iterator[None]:
    """Logs every few seconds that the Store's server is not there, for which torch waits in silence."""
    ended = threading.Event()
    begin = time.monotonic()
    seconds = limit.total_seconds()
    advice = _advice(host, port)

    def tell() -> None:
        while not ended.wait(_TOLD_EVERY):
            if why := _why_unreachable(host, port):
                # torch waits longer than it is told to, for its last try to connect.
                waited = f"{min(time.monotonic() - begin, seconds):.0f} s of {seconds:.0f} s"
                whom = "a Store" if advice else "rank 0"
                warn(f"waits for {whom} at {host}:{port}, {why} ({waited}){advice}")

    thread = threading.Thread(target=tell, name="weft-store", daemon=True)
    started(thread, "a Store that does not answer is not reported")
    try:
        yield
    except DistNetworkError as error:
        if not advice:
            raise
        raise DistNetworkError(f"{error}{advice}") from None
    finally:
        ended.set()


def _why_unreachable(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), timeout=_TOLD_EVERY).close()
    except ConnectionRefusedError:
        return "nobody listens"
    except OSError as error:
        return f"which cannot be reached: {error}"
    return ""
