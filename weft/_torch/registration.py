"""Registers the RPC backend ``WEFT``, and the process group ``weft``."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.distributed.rpc import api, backend_registry
from torch.distributed.rpc.constants import DEFAULT_RPC_TIMEOUT_SEC

from weft import _C, _native, _observe
from weft._observe import logs
from weft._torch import current, op_effects, patches, process_group
from weft._torch.log import warn
from weft._torch.patches import default
from weft._torch.patches.unpickler import set_policy
from weft.options import RpcBackendOptions, master_host

BACKEND = "WEFT"
_CALLBACKS_LIMIT = timedelta(seconds=10)  # as for a group's collectives and theirs


def make_agent(
    store: dist.Store,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: RpcBackendOptions,
    make: Any = None,
) -> _C.WeftAgent:
    """Creates an agent, lets it join its group, and makes it torch's current one.

    Args:
        make: for tests: a capsule with what makes an agent of another kind.
    """
    if not isinstance(store, dist.Store):
        raise TypeError(f"`store` must be a c10d::Store. {store}")
    options = rpc_backend_options
    if not isinstance(options, RpcBackendOptions):
        raise TypeError(f"`rpc_backend_options` must be a `weft.RpcBackendOptions`. {options}")
    options.master_host = master_host(options.init_method)
    if not options.rpc_timeout:
        # torch has given the Store the same timeout, and there 0 is no time at all.
        store.set_timeout(timedelta(seconds=DEFAULT_RPC_TIMEOUT_SEC))
    set_policy(options.request_policy)
    _observe.start()
    agent = _C.WeftAgent(
        store, name, rank, world_size or None, torch.cuda.device_count(), options, make
    )
    if torch.cuda.is_available() and agent.has_devices:
        # Peers may send CUDA tensors before user code here has touched CUDA.
        torch.cuda.init()
        _native.load_cuda()
    current.agents_made += 1
    api._init_rpc_states(agent)
    logs.announce(name, agent.get_worker_info().id, world_size, options.auth_key_file)
    return agent


def register_backend(
    name: str, make_options: Callable[..., RpcBackendOptions], make: Callable[..., _C.WeftAgent]
) -> None:
    """Registers an RPC backend; a second call changes nothing."""
    if backend_registry.backend_registered(name):
        return

    def construct_options(rpc_timeout: float, init_method: str, **more: Any) -> RpcBackendOptions:
        return make_options(rpc_timeout=rpc_timeout, init_method=init_method, **more)

    backend_registry.register_backend(name, construct_options, make)
    # torch has made a new enum and leaves rpc.BackendType the old one; a plain init_rpc() would then
    # fail its own type check.
    rpc.BackendType = backend_registry.BackendType


def _shut_down_at_exit() -> None:
    """Ends an agent and groups that the program forgot, while the interpreter still lives."""
    for _, backend in current.named_backends():
        with contextlib.suppress(Exception):
            backend.shutdown()
    _C._wait_for_callbacks(_CALLBACKS_LIMIT)
    with contextlib.suppress(Exception):
        agent = current.agent()
        if agent is not None:
            agent.shutdown()


def _switched_on(variable: str) -> bool:
    """Checked at the import: later, a program that asked for Weft by it would run without."""
    value = os.environ.get(variable) or "0"
    if value not in ("0", "1"):
        raise ValueError(f"{variable} must be 0 or 1, got {value!r}")
    return value == "1"


def _tell_of_misspelt_wishes() -> None:
    """An agent warns of unknown names; without the wish for Weft there may never be one."""
    for name in _C.unknown_environment():
        if name.startswith("WEFT_AS_"):
            warn(f"the environment variable {name} is not one that Weft knows")


def install() -> None:
    """Registers the backend and the patches; calling it again changes nothing.

    Raises:
        ValueError: ``WEFT_AS_DEFAULT`` or ``WEFT_AS_PROCESS_GROUP`` is neither 0 nor 1. Nothing has
            changed then.
    """
    as_default, as_process_group = map(_switched_on, ("WEFT_AS_DEFAULT", "WEFT_AS_PROCESS_GROUP"))
    if not backend_registry.backend_registered(BACKEND):
        process_group.register()
        patches.install()
        op_effects.install()
        register_backend(BACKEND, RpcBackendOptions, make_agent)
        atexit.register(_shut_down_at_exit)
        _tell_of_misspelt_wishes()
    if as_default:
        default.make_default()
    if as_process_group:
        default.make_default_process_group()
