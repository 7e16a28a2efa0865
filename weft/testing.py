"""The agent that injects faults, for PyTorch's fault-injection suites. Not for production."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed.rpc import backend_registry

from weft import _C
from weft._torch.patches.startup import refresh_backend_type
from weft._torch.registration import make_agent
from weft.options import RpcBackendOptions

BACKEND = "WEFT_FAULTY"


class FaultyRpcBackendOptions(RpcBackendOptions):
    """Weft's options, and which messages fail or are held back.

    Args:
        messages_to_fail: names of message types whose first sends fail.
        messages_to_delay: names of message types, each with seconds to hold it back.
        num_fail_sends: how often a message of ``messages_to_fail`` fails before it passes.
        messages_to_repeat: names of message types, each with the number of copies sent besides.
    """

    def __init__(
        self,
        *,
        messages_to_fail: Sequence[str] = (),
        messages_to_delay: Mapping[str, float] | None = None,
        num_fail_sends: int = 0,
        messages_to_repeat: Mapping[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.messages_to_fail = list(messages_to_fail)
        self.messages_to_delay = dict(messages_to_delay or {})
        self.num_fail_sends = num_fail_sends
        self.messages_to_repeat = dict(messages_to_repeat or {})


def _construct_options(rpc_timeout: float, init_method: str, **kwargs: Any) -> RpcBackendOptions:
    return FaultyRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _init_backend(
    store: dist.Store,
    name: str,
    rank: int,
    world_size: int | None,
    rpc_backend_options: FaultyRpcBackendOptions,
) -> _C.WeftAgent:
    faults = _C.FaultOptions()
    faults.messages_to_fail = rpc_backend_options.messages_to_fail
    faults.messages_to_delay = rpc_backend_options.messages_to_delay
    faults.num_fail_sends = rpc_backend_options.num_fail_sends
    faults.messages_to_repeat = rpc_backend_options.messages_to_repeat
    return make_agent(store, name, rank, world_size, rpc_backend_options, faults)


if not backend_registry.backend_registered(BACKEND):
    backend_registry.register_backend(BACKEND, _construct_options, _init_backend)
    refresh_backend_type()
