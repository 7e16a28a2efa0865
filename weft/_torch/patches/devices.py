"""Patches for values on devices: torch's own ways lose their streams, or refuse them."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed import rpc
from torch.futures import Future

from weft import _C
from weft._torch import current
from weft._torch.patches.patch import Function, patch


def _rpc_async(*args: Any, **kwargs: Any) -> Future[Any]:
    """Another name, by which torch's function returns the future of the call itself."""
    return rpc.rpc_async(*args, **kwargs)


@patch(
    "torch.distributed.rpc.rref_proxy:_invoke_rpc",
    "(rref, rpc_api, func_name, timeout, *args, **kwargs)",
    without="`rref.rpc_async()` gives tensors on devices before they are computed.",
    caller="torch.distributed.rpc.rref_proxy:RRefProxy.__getattr__",
    uses={"torch.distributed.rpc:PyRRef._get_type": "(self, timeout=-1.0, blocking=True)"},
)
def invoke_through_rref(
    upstream: Function,
    rref: Any,
    rpc_api: Any,
    func_name: str,
    timeout: float,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``rref.rpc_async().method()``: torch's future knows no devices, so nothing waits for their streams."""
    agent = current.agent()
    if rpc_api is not rpc.rpc_async or agent is None or not agent.has_devices:
        return upstream(rref, rpc_api, func_name, timeout, *args, **kwargs)
    result: Future[Any] = Future(devices=agent.devices)
    # The call may be made on another thread, and its arguments are on their way on these streams.
    streams = [torch.cuda.current_stream(one) for one in agent.devices if one.type == "cuda"]

    def complete(answered: Future[Any]) -> None:
        try:
            result.set_result(answered.value())
        except BaseException as error:
            result.set_exception(error)

    def call(_typed: Future[Any]) -> None:
        try:
            with contextlib.ExitStack() as current_streams:
                for stream in streams:
                    current_streams.enter_context(torch.cuda.stream(stream))
                upstream(rref, _rpc_async, func_name, timeout, *args, **kwargs).then(complete)
        except BaseException as error:
            result.set_exception(error)

    rref._get_type(timeout=timeout, blocking=False).then(call)
    return result


@patch(
    "torch._jit_internal:_TensorExtractor.persistent_id",
    "(self, obj)",
    without="An RRef to a scripted module fails in a group with devices.",
)
def tensors_in(upstream: Function, self: Any, obj: Any) -> Any:
    """A scripted module cannot be pickled, which is how torch looks for tensors in a value."""
    if isinstance(obj, torch.jit.ScriptModule) and _C._weft_is_current():
        self.tensors.extend([*obj.parameters(), *obj.buffers()])
        return ""
    return upstream(self, obj)
