"""Patches of ``rpc_sync``, ``rpc_async`` and ``remote``: the same answers in less time."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.rpc import api, internal
from torch.jit import _builtins

from weft import _C
from weft._torch.patches import rref
from weft._torch.patches.patch import Function, patch

_SYNC = api.RPCExecMode.SYNC
_ASYNC = api.RPCExecMode.ASYNC


class _Answer:
    """Stands for a future that is complete."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        return self._value


@patch(
    "torch.distributed.rpc.api:_invoke_rpc",
    "(to, func, rpc_type, args=None, kwargs=None, rpc_timeout=-1.0)",
    without="rpc_sync and rpc_async over Weft take longer.",
    caller="torch.distributed.rpc.api:rpc_sync",
    uses={
        "torch.distributed.rpc.api:_to_worker_info": "(to)",
        "torch.distributed.rpc.api:_get_should_profile": "()",
        "torch.jit._builtins:_find_builtin": "(fn)",
    },
)
def invoke_rpc(
    upstream: Function,
    to: Any,
    func: Any,
    rpc_type: Any,
    args: Any = None,
    kwargs: Any = None,
    rpc_timeout: float = api.UNSET_RPC_TIMEOUT,
) -> Any:
    """Lets the thread that waits complete its call.

    torch knows only futures below this function. Here a built-in operator's overload is found once,
    not at each call, and an answer that nobody waits for takes no GIL
    (rpc_backend/python/calls.cpp). What a Python function raises comes as its own type, where torch's
    futures have text; and where it is waited for, no future stands between Ctrl-C and the caller
    (rpc_backend/python/python_calls.cpp).
    """
    if not _C._weft_is_current():
        return upstream(to, func, rpc_type, args, kwargs, rpc_timeout)
    waits = rpc_type is _SYNC
    name = _builtins._find_builtin(func) if callable(func) else None
    profiled = api._get_should_profile()
    if name is not None and not profiled:
        invoke = _C._call_builtin if waits else _C._start_builtin
        worker = api._to_worker_info(to)
        done, value = invoke(worker, name, rpc_timeout, tuple(args or ()), dict(kwargs or {}))
        if done:
            return _Answer(value) if waits else value
    if profiled or rpc_type not in (_SYNC, _ASYNC):
        return upstream(to, func, rpc_type, args, kwargs, rpc_timeout)
    if name is None and callable(func) and not _is_script(func):
        # Before the arguments are pickled: an RRef among them that is not sent stays with its owner.
        worker, timeout = api._to_worker_info(to), float(rpc_timeout)
        call = internal.PythonUDF(func, args or (), kwargs or {})
        pickled, tensors = api._default_pickler.serialize(call)
        asynchronous = hasattr(func, "_wrapped_async_rpc_function")
        invoke = _C._call_python if waits else _C._start_python
        value = invoke(worker, pickled, tensors, timeout, asynchronous)
        return _Answer(value) if waits else value
    if waits and _is_script(func):
        function = getattr(func, "_wrapped_async_rpc_function", func)
        return _Answer(
            _C._call_script(
                api._to_worker_info(to).name,
                torch._jit_internal._qualified_name(function),
                tuple(args or ()),
                dict(kwargs or {}),
                float(rpc_timeout),
                function is not func,
            )
        )
    return upstream(to, func, rpc_type, args, kwargs, rpc_timeout)


def _is_script(func: Any) -> bool:
    """Whether torch calls it as a TorchScript function."""
    return isinstance(getattr(func, "_wrapped_async_rpc_function", func), torch.jit.ScriptFunction)


@patch(
    "torch.distributed.rpc.api:_invoke_rpc_torchscript",
    "(arg0, arg1, arg2, arg3, arg4, arg5)",
    without="A call of a TorchScript function over Weft never ends if its answer cannot be read.",
    caller="torch.distributed.rpc.api:_invoke_rpc",
)
def invoke_rpc_torchscript(upstream: Function, *call: Any) -> Any:
    """Fails where the answer cannot be read, such as one with an object of a TorchScript class.

    torch reads it in a callback that throws then, and leaves the caller's future incomplete, also
    after the timeout (rpc_backend/python/script_calls.cpp).
    """
    return (_C._start_script if _C._weft_is_current() else upstream)(*call)


@patch(
    "torch.distributed.rpc.api:_invoke_remote_builtin",
    "(arg0, arg1, arg2, *args, **kwargs)",
    without="remote of a built-in operator over Weft takes longer.",
    caller="torch.distributed.rpc.api:remote",
)
def invoke_remote_builtin(
    upstream: Function, to: Any, name: str, timeout: float, /, *args: Any, **kwargs: Any
) -> Any:
    """Finds a built-in operator's overload once; torch finds it anew at each ``remote``."""
    made = None
    if _C._weft_is_current():
        made = _C._remote_builtin(to, name, timeout, args, kwargs)
    return upstream(to, name, timeout, *args, **kwargs) if made is None else made


@patch(
    "torch.distributed.rpc.internal:_internal_rpc_pickler.serialize",
    "(obj)",
    without="Python calls with many tensors over Weft take longer.",
    uses={"torch.distributed.rpc.internal:_InternalRPCPickler._tensor_receiver": "(tensor_index)"},
)
def serialize(upstream: Function, obj: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Writes the receiver of tensors once per message.

    torch's reducer makes a new bound method for each tensor, so pickle writes its name for each of
    them. One that stays is written once and referred to afterwards. torch's pickler reads both.
    """
    torchs, short = _tensor_reducers()
    reducer = short if _C._weft_is_current() else torchs
    internal._internal_rpc_pickler._dispatch_table[torch.Tensor] = reducer
    tables, forks = internal._thread_local_tensor_tables, rref.forks
    outer, outer_forks, forks.made = getattr(tables, "send_tables", None), forks.made, []
    try:
        pickled = upstream(obj)
        forks.last = forks.made
        return pickled
    except BaseException:
        _forget(forks.made, tables, outer)
        raise
    finally:
        forks.made = outer_forks


def _forget(forks: list[tuple[Any, ...]], tables: Any, outer: list[torch.Tensor] | None) -> None:
    """Forgets the message whose pickling failed: the owner of an RRef in it would wait for its fork,
    and torch keeps its tensors for the thread."""
    _C._forget_forks(forks)
    tables.__dict__.pop("send_tables", None)
    if outer is not None:
        tables.send_tables = outer


def _reduce_scripted(module: torch.jit.ScriptModule) -> tuple[Any, ...]:
    """As torch's reducer, which torch uses only if a message consists of one module, or after its
    ``torch.distributed.nn.api.remote_module`` was imported."""
    if hasattr(module._c, "module_rref"):
        raise RuntimeError(
            "Passing a script RemoteModule over RPC is not supported. Send the RRef that its "
            "get_module_rref() gives, and make a RemoteModule of that at the receiver."
        )
    return internal._internal_rpc_pickler._script_module_reducer(module)


for _class in (torch.jit.RecursiveScriptModule, torch.jit.TopLevelTracedModule):
    internal._internal_rpc_pickler._register_reducer(_class, _reduce_scripted)


@functools.cache
def _tensor_reducers() -> tuple[Function, Function]:
    """torch's reducer of tensors, and one whose receiver stays the same object."""
    pickler, tables = internal._internal_rpc_pickler, internal._thread_local_tensor_tables
    receiver = type(pickler)._tensor_receiver

    def short(tensor: torch.Tensor) -> tuple[Any, tuple[int]]:
        table = tables.send_tables
        table.append(tensor)
        return receiver, (len(table) - 1,)

    return pickler._dispatch_table[torch.Tensor], short
