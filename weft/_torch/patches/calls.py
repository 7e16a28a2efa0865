"""Patches of ``rpc_sync``, ``rpc_async`` and ``remote``: the same answers in less time."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.distributed.rpc import api, internal
from torch.jit import _builtins

from weft import _C
from weft._torch.forks import forks
from weft._torch.patches.failures import result_failure
from weft._torch.patches.patch import Function, patch

_SYNC = api.RPCExecMode.SYNC
_ASYNC = api.RPCExecMode.ASYNC
_NOT_OURS = object()


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

    Returns:
        With SYNC what rpc_sync calls ``wait()`` on, with ASYNC the future.
    """
    ours = _C._weft_is_current() and not api._get_should_profile()
    if not ours or rpc_type not in (_SYNC, _ASYNC):
        return upstream(to, func, rpc_type, args, kwargs, rpc_timeout)
    if type(rpc_timeout) is not float:
        rpc_timeout = _seconds(rpc_timeout)
    waits = rpc_type is _SYNC
    name = _builtins._find_builtin(func) if callable(func) else None
    value = _NOT_OURS
    if name is not None:
        value = _builtin(to, name, waits, args or (), kwargs or {}, rpc_timeout)
    elif callable(func) and not _is_script(func):
        value = _python(to, func, waits, args or (), kwargs or {}, rpc_timeout)
    elif waits and _is_script(func):
        value = _script(to, func, args or (), kwargs or {}, rpc_timeout)
    if value is _NOT_OURS:
        return upstream(to, func, rpc_type, args, kwargs, rpc_timeout)
    return _Answer(value) if waits else value


def _seconds(timeout: Any) -> float:
    if isinstance(timeout, (bool, str, bytes)):
        raise TypeError(f"timeout must be a number of seconds, got {timeout!r}")
    return float(timeout)


def _builtin(to: Any, name: str, waits: bool, args: Any, kwargs: Any, timeout: float) -> Any:
    """The value if ``waits``, else a future; _NOT_OURS: torch finds the overload."""
    invoke = _C._call_builtin if waits else _C._start_builtin
    worker = api._to_worker_info(to)
    done, value = invoke(worker, name, timeout, tuple(args), dict(kwargs))
    return value if done else _NOT_OURS


def _python(to: Any, func: Any, waits: bool, args: Any, kwargs: Any, timeout: float) -> Any:
    # Before the arguments are pickled: an RRef among them that is not sent stays with its owner.
    worker = api._to_worker_info(to)
    pickled, tensors = api._default_pickler.serialize(internal.PythonUDF(func, args, kwargs))
    asynchronous = hasattr(func, "_wrapped_async_rpc_function")
    invoke = _C._call_python if waits else _C._start_python
    return invoke(worker, pickled, tensors, timeout, asynchronous)


def _script(to: Any, func: Any, args: Any, kwargs: Any, timeout: float) -> Any:
    function = getattr(func, "_wrapped_async_rpc_function", func)
    return _C._call_script(
        api._to_worker_info(to).name,
        torch._jit_internal._qualified_name(function),
        tuple(args),
        dict(kwargs),
        timeout,
        function is not func,
    )


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
    without="Python calls with many tensors over Weft take longer, and an RRef in a message that cannot "
    "be pickled stays with its owner.",
    uses={"torch.distributed.rpc.internal:_InternalRPCPickler._tensor_receiver": "(tensor_index)"},
)
def serialize(upstream: Function, obj: Any) -> tuple[bytes, list[torch.Tensor]]:
    """Writes the receiver of tensors once per message, and keeps nothing of one that fails.

    torch's reducer makes a new bound method for each tensor, so pickle writes its name for each of
    them. One that stays is written once and referred to afterwards. torch's pickler reads both.
    """
    torchs, short = _tensor_reducers()
    reducer = short if _C._weft_is_current() else torchs
    internal._internal_rpc_pickler._dispatch_table[torch.Tensor] = reducer
    tables = internal._thread_local_tensor_tables
    outer = getattr(tables, "send_tables", None)
    try:
        with forks:
            try:
                return upstream(obj)
            except BaseException:  # torch keeps the message's tensors for the thread
                tables.__dict__.pop("send_tables", None)
                if outer is not None:
                    tables.send_tables = outer
                raise
    except Exception as error:
        # By this function C++ sends what a function returned, and the value of an RRef.
        of_cpp = sys._getframe(1).f_code is internal.serialize.__code__
        if not of_cpp or not _C._weft_is_current():
            raise
        return upstream(result_failure(obj, error))


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
