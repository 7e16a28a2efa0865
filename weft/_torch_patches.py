"""What PyTorch leaves no door for, patched in this one file.

Each patch states its reason and the versions it was checked on. A patch affects calls only
while the current agent, or the process group in question, is Weft's; with TensorPipe and Gloo
upstream's code runs as it was.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.distributed.rpc import api, backend_registry, internal
from torch.distributed.rpc.constants import DEFAULT_RPC_TIMEOUT_SEC
from torch.nn.parallel import DistributedDataParallel

from weft import _C

logger = logging.getLogger(__name__)
_meeting = threading.local()  # .timeout: set while a thread is in init_rpc for Weft


def _current_is_weft() -> bool:
    return api._is_current_rpc_agent_set() and isinstance(
        api._get_current_rpc_agent(), _C.WeftAgent
    )


def refresh_backend_type() -> None:
    """``rpc.BackendType`` after a registration. Checked on 2.11 and 2.15.

    ``register_backend`` makes a new enum and leaves ``rpc.BackendType`` the old one; then a
    plain ``init_rpc()`` fails its own type check.
    """
    rpc.BackendType = backend_registry.BackendType


def _patch_wait_all_workers() -> None:
    """``api._wait_all_workers``. Checked on 2.11 and 2.15.

    Upstream's is an all-gather over Python calls: it waits for minutes when a worker has died,
    and request policies refuse it. Weft's agent has a barrier of its own, which knows who is lost.
    Upstream's follows it where it can work and be quick, because its failures are part of what
    programs see of ``shutdown``. A dynamic group has no barrier: its workers leave one by one.
    """
    upstream = api._wait_all_workers

    @functools.wraps(upstream)
    def wait_all_workers(timeout: float = api.DEFAULT_SHUTDOWN_TIMEOUT) -> None:
        if not _current_is_weft():
            upstream(timeout)
            return
        agent = api._get_current_rpc_agent()
        if not agent.is_static_group:
            return
        lost = agent.barrier(timeout)
        # A peer may have come to the barrier and yet not be reachable from here (another key).
        if lost or any(agent.loss_of(worker.id) for worker in agent.get_worker_infos()):
            return
        if agent.everyone_serves_python:
            upstream(timeout or api.get_rpc_timeout())

    api._wait_all_workers = wait_all_workers


def _patch_destroy_rref_context() -> None:
    """``api._destroy_rref_context``, the last step of ``shutdown``. Checked on 2.11 and 2.15.

    Upstream tells of leaked RRefs by number only. This is the last moment at which Weft can say
    what leaks and who still refers to it.
    """
    upstream = api._destroy_rref_context

    @functools.wraps(upstream)
    def destroy_rref_context(ignore_leak: bool) -> Any:
        if _current_is_weft():
            api._get_current_rpc_agent().warn_about_leaked_rrefs(ignore_leak)
        return upstream(ignore_leak)

    api._destroy_rref_context = destroy_rref_context


def _patch_rendezvous() -> None:
    """``rpc.init_rpc`` and ``rendezvous._create_c10d_store``. Checked on 2.11 and 2.15.

    With ``env://`` and ``tcp://``, before any backend is asked, rank 0 waits inside its TCPStore for
    all workers, and the others wait for rank 0: half an hour, in silence. For Weft the workers'
    ``rpc_timeout`` bounds that, and rank 0 does not wait there: the agent does, and names the missing.
    """
    # By name: torch.distributed has a function of the module's name.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    upstream_init, upstream_store = rpc.init_rpc, rendezvous._create_c10d_store

    @functools.wraps(upstream_store)
    def create_store(
        hostname: str, port: int, rank: int, world_size: int, timeout: Any, *rest: Any, **more: Any
    ) -> Any:
        limit = getattr(_meeting, "timeout", None)
        if limit is not None:
            world_size, timeout = -1, limit  # -1: the store does not count its users
        return upstream_store(hostname, port, rank, world_size, timeout, *rest, **more)

    @functools.wraps(upstream_init)
    def init_rpc(
        name: str,
        backend: Any = None,
        rank: int = -1,
        world_size: int | None = None,
        rpc_backend_options: Any = None,
    ) -> None:
        ours = isinstance(rpc_backend_options, _C.RpcBackendOptionsBase)
        if ours or getattr(backend, "name", None) == "WEFT":
            seconds = getattr(rpc_backend_options, "rpc_timeout", 0) or DEFAULT_RPC_TIMEOUT_SEC
            _meeting.timeout = timedelta(seconds=seconds)
        try:
            upstream_init(name, backend, rank, world_size, rpc_backend_options)
        finally:
            _meeting.timeout = None

    rendezvous._create_c10d_store = create_store
    rpc.init_rpc = init_rpc


class _Answer:
    """Stands for a future that is complete."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self._value


def _patch_calls() -> None:
    """``api._invoke_rpc``, behind ``rpc_sync`` (checked on 2.11 and 2.15) and ``rpc_async`` (2.11).

    Below it upstream knows futures only. Here the thread that waits completes the call itself
    (rpc_backend/agent/inline_waiter.h), a built-in operator's overload is not sought anew for each call, and
    the answer to one that is not waited for takes no GIL (rpc_backend/python/calls.cpp).
    """
    upstream = api._invoke_rpc
    sync = api.RPCExecMode.SYNC
    find_builtin = importlib.import_module("torch.jit._builtins")._find_builtin

    @functools.wraps(upstream)
    def invoke_rpc(
        to: Any,
        func: Any,
        rpc_type: Any,
        args: Any = None,
        kwargs: Any = None,
        rpc_timeout: float = api.UNSET_RPC_TIMEOUT,
    ) -> Any:
        if not _C._weft_is_current():
            return upstream(to, func, rpc_type, args, kwargs, rpc_timeout)
        waits = rpc_type is sync
        name = find_builtin(func) if callable(func) else None
        if name is not None and not api._get_should_profile():
            invoke = _C._call_builtin if waits else _C._start_builtin
            worker = api._to_worker_info(to)
            done, value = invoke(worker, name, rpc_timeout, tuple(args or ()), dict(kwargs or {}))
            if done:
                return _Answer(value) if waits else value
        if not waits:
            return upstream(to, func, rpc_type, args, kwargs, rpc_timeout)
        _C._take_seat()
        try:
            future = upstream(to, func, rpc_type, args, kwargs, rpc_timeout)
        except BaseException:
            _C._leave_seat()
            raise
        _C._wait_in_seat()
        return future

    api._invoke_rpc = invoke_rpc


def _patch_pickler() -> None:
    """How the internal pickler writes a tensor. Checked on 2.11 and 2.15.

    Upstream's reducer makes a new bound method for each tensor, so pickle writes out anew by what
    name it is found, and the other end finds it anew. One that stays is written once and
    referred to afterwards: 122 tensors take 28 us instead of 69, and 1,400 bytes instead of 2,200.
    Upstream's pickler reads it like its own.
    """
    pickler = internal._internal_rpc_pickler
    upstream, whole = pickler.serialize, pickler._dispatch_table[torch.Tensor]
    receiver, tables = type(pickler)._tensor_receiver, internal._thread_local_tensor_tables

    def short(tensor: torch.Tensor) -> tuple[Any, tuple[int]]:
        table = tables.send_tables
        table.append(tensor)
        return receiver, (len(table) - 1,)

    @functools.wraps(upstream)
    def serialize(obj: Any) -> tuple[bytes, list[torch.Tensor]]:
        pickler._dispatch_table[torch.Tensor] = short if _C._weft_is_current() else whole
        return upstream(obj)

    pickler.serialize = serialize


def _patch_remote_builtin() -> None:
    """``api._invoke_remote_builtin``, behind ``remote``. Checked on 2.11; compiled against 2.15.

    Upstream seeks the overload anew for each call, and writes its schema.
    """
    upstream = api._invoke_remote_builtin

    @functools.wraps(upstream)
    def invoke_remote_builtin(
        to: Any, name: str, timeout: float, /, *args: Any, **kwargs: Any
    ) -> Any:
        rref = None
        if _C._weft_is_current():
            rref = _C._remote_builtin(to, name, timeout, args, kwargs)
        return upstream(to, name, timeout, *args, **kwargs) if rref is None else rref

    api._invoke_remote_builtin = invoke_remote_builtin


def _patch_failed_rrefs() -> None:
    """``PyRRef.to_here`` and ``PyRRef._serialize``. Checked on 2.11 and 2.15.

    Upstream says of an RRef whose creation failed that it "timed out", whatever happened. Its
    future knows better: who refused it, what its function raised on the way, which worker is lost.
    """
    rref = rpc.PyRRef

    def says_why(upstream: Any) -> Any:
        @functools.wraps(upstream)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return upstream(self, *args, **kwargs)
            except RuntimeError as error:
                cause = _creation_error(self) if _CREATION_FAILED in str(error) else None
                if cause is None:
                    raise
            raise RuntimeError(f"RRef creation via rpc.remote() failed: {cause}")

        return call

    rref.to_here = says_why(rref.to_here)
    rref._serialize = says_why(rref._serialize)


_CREATION_FAILED = "RRef creation via rpc.remote() timed out"


def _creation_error(rref: Any) -> str | None:
    """Why a failed RRef has no value; None if this worker did not create it."""
    try:
        creation = rref._get_future()
        if not creation.done():
            return None
        creation.wait()
    except RuntimeError as error:
        # torch begins a text with that tells the kind of error (makeRPCError).
        return re.sub(r"^RPCErr:\d+:", "", str(error))
    return None


def _patch_monitored_barrier() -> None:
    """``dist.monitored_barrier``. Checked on 2.11.

    Upstream refuses every backend but the one named gloo; below Python any backend may have it.
    """
    c10d = dist.distributed_c10d
    upstream = c10d.monitored_barrier

    @functools.wraps(upstream)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> Any:
        if c10d._rank_not_in_group(group) or dist.get_backend(group) != "weft":
            return upstream(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = c10d.default_pg_timeout
        elif isinstance(timeout, float):
            timeout = timedelta(seconds=timeout)
        c10d._check_valid_timeout(timeout)
        own = c10d._get_default_group() if group is None else group
        return own.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)

    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


def _patch_batch_isend_irecv() -> None:
    """``dist.batch_isend_irecv``. Checked on 2.11 and 2.15.

    NCCL needs a batch to be one group of calls. Upstream keeps the batch's state per group: what
    other threads call on that group meanwhile, and everything after a batch that raised, is
    silently not run. So Weft does not say that it coalesces, and batches CUDA tensors here: per
    thread, and to the end.
    """
    c10d = dist.distributed_c10d
    upstream = c10d.batch_isend_irecv

    @functools.wraps(upstream)
    def batch_isend_irecv(p2p_op_list: list[dist.P2POp]) -> list[dist.Work]:
        c10d._check_p2p_op_list(p2p_op_list)
        device = p2p_op_list[0].tensor.device
        group = p2p_op_list[0].group or c10d._get_default_group()
        if device.type == "cpu" or not isinstance(group._get_backend(device), _C.WeftBackend):
            return upstream(p2p_op_list)
        group._start_coalescing(device)
        try:
            for op in p2p_op_list:
                peer = "group_dst" if op.op is c10d.isend else "group_src"
                op.op(op.tensor, group=op.group, tag=op.tag, **{peer: op.group_peer})
        finally:
            work = group._end_coalescing(device)
        return [work]

    c10d.batch_isend_irecv = dist.batch_isend_irecv = batch_isend_irecv


def _patch_coalescing_manager() -> None:
    """``distributed_c10d._coalescing_manager``. Checked on 2.11 and 2.15.

    Upstream leaves the group coalescing when its body raises: every later collective on the group
    is then silently not run.
    """
    c10d = dist.distributed_c10d
    upstream = c10d._coalescing_manager

    @functools.wraps(upstream)
    @contextlib.contextmanager
    def coalescing_manager(
        group: Any = None, device: torch.device | None = None, async_ops: bool = False
    ) -> Iterator[Any]:
        own = group or c10d._get_default_group()
        try:
            with upstream(own, device, async_ops) as manager:
                yield manager
        except BaseException:
            if _C.WeftBackend in {type(own._get_backend(kind)) for kind in own._device_types}:
                c10d._world.pg_coalesce_state.pop(own, None)
                if device is not None:
                    with contextlib.suppress(RuntimeError):  # it may have raised in the end itself
                        own._end_coalescing(device)
            raise

    c10d._coalescing_manager = dist._coalescing_manager = coalescing_manager


def _patch_set_pg_timeout() -> None:
    """``distributed_c10d._set_pg_timeout``. Checked on 2.11.

    Upstream sets the timeout of gloo and nccl groups and only warns for others.
    """
    c10d = dist.distributed_c10d
    upstream = c10d._set_pg_timeout

    @functools.wraps(upstream)
    def set_pg_timeout(timeout: timedelta, group: Any = None) -> None:
        own = c10d._get_default_group() if group is None else group
        backends = {}
        if not c10d._rank_not_in_group(own):
            for device in own._device_types:
                backend = own._get_backend(device)
                backends[id(backend)] = backend
        ours = [backend for backend in backends.values() if isinstance(backend, _C.WeftBackend)]
        for backend in ours:
            backend._set_default_timeout(timeout)
        if len(ours) < len(backends) or not ours:
            upstream(timeout, group)

    c10d._set_pg_timeout = set_pg_timeout


def _patch_ddp_logging() -> None:
    """``DistributedDataParallel._get_ddp_logging_data``. Checked on 2.11.

    Upstream's logger knows the names of its own backends and calls every other one "custom".
    """
    upstream = DistributedDataParallel._get_ddp_logging_data

    @functools.wraps(upstream)
    def get_ddp_logging_data(self: Any) -> Any:
        data = upstream(self)
        if data.get("backend_name") == "custom" and dist.get_backend(self.process_group) == "weft":
            data["backend_name"] = "weft"
        return data

    DistributedDataParallel._get_ddp_logging_data = get_ddp_logging_data


def install() -> None:
    """Installs the patches that registration needs."""
    _patch_ddp_logging()
    _patch_batch_isend_irecv()
    _patch_coalescing_manager()
    _patch_monitored_barrier()
    _patch_set_pg_timeout()
    _patch_wait_all_workers()
    _patch_destroy_rref_context()
    _patch_rendezvous()
    _patch_calls()
    _patch_pickler()
    _patch_remote_builtin()
    _patch_failed_rrefs()


def translate_options(options: Any) -> Any:
    """``TensorPipeRpcBackendOptions`` as Weft's; other options as they are."""
    from weft.options import RpcBackendOptions

    if not isinstance(options, rpc.TensorPipeRpcBackendOptions):
        return options
    return RpcBackendOptions(
        num_worker_threads=options.num_worker_threads,
        rpc_timeout=options.rpc_timeout,
        init_method=options.init_method,
        device_maps=options.device_maps,
        devices=options.devices,
    )


def make_default() -> None:
    """Makes Weft what ``init_rpc`` uses. Checked on 2.11 and 2.15.

    Upstream names TENSORPIPE in the code of ``init_rpc``; there is no setting. A program that
    asks for TENSORPIPE, or gives its options, gets Weft with those options translated.
    """
    upstream = rpc.init_rpc
    if getattr(upstream, "_weft_default", False):
        return

    @functools.wraps(upstream)
    def init_rpc(
        name: str,
        backend: Any = None,
        rank: int = -1,
        world_size: int | None = None,
        rpc_backend_options: Any = None,
    ) -> None:
        asked = getattr(backend, "name", None)
        if backend is None or asked == "TENSORPIPE":
            if asked == "TENSORPIPE":
                logger.info("init_rpc asked for TENSORPIPE; Weft is the default and serves it")
            backend = backend_registry.BackendType["WEFT"]
            rpc_backend_options = translate_options(rpc_backend_options)
        upstream(name, backend, rank, world_size, rpc_backend_options)

    init_rpc._weft_default = True  # type: ignore[attr-defined]
    rpc.init_rpc = init_rpc


def make_default_process_group() -> None:
    """Makes ``gloo`` mean weft in ``init_process_group`` and ``new_group``. Checked on 2.11.

    Upstream knows gloo by name. ``cpu:gloo,cuda:nccl`` becomes ``cpu:weft,cuda:nccl``, and no backend
    at all (gloo for CPU tensors) becomes weft.
    """
    c10d = dist.distributed_c10d
    if getattr(c10d.init_process_group, "_weft_default", False):
        return

    def translated(backend: Any) -> Any:
        if backend is None:
            return None
        return re.sub(r"\bgloo\b", "weft", str(backend).lower())

    def wrap(upstream: Any) -> Any:
        parameters = list(inspect.signature(upstream).parameters)
        place = parameters.index("backend")

        @functools.wraps(upstream)
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) > place:
                args = (*args[:place], translated(args[place]), *args[place + 1 :])
            elif "backend" in kwargs:
                kwargs["backend"] = translated(kwargs["backend"])
            return upstream(*args, **kwargs)

        call._weft_default = True  # type: ignore[attr-defined]
        return call

    for name in ("init_process_group", "new_group"):
        patched = wrap(getattr(c10d, name))
        setattr(c10d, name, patched)
        setattr(dist, name, patched)
    c10d.Backend.default_device_backend_map["cpu"] = "weft"
