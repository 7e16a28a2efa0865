"""The patch that makes torch's RPC unpickler obey the request policy ``registered``."""

from __future__ import annotations

import pickle
from typing import Any

from weft._torch.patches.patch import Patch
from weft._torch.request_policy import RestrictedUnpickler

_DESERIALIZE = "torch.distributed.rpc.internal:_InternalRPCPickler.deserialize"

unpickler = Patch(
    "torch.distributed.rpc.internal:_unpickler",
    "(file, ...)",
    without="The request policy 'registered' cannot be kept.",
    make=lambda upstream: _restricted,
    refuses=lambda: True,
    caller=_DESERIALIZE,
    uses={_DESERIALIZE: "(self, binary_data, tensor_table)"},
)


def _restricted(file: Any) -> pickle.Unpickler:
    return RestrictedUnpickler(file)


def set_policy(policy: str) -> None:
    """Makes torch's RPC unpickler obey ``policy`` from now on.

    Raises:
        RuntimeError: this torch does not unpickle where the policy ``registered`` can restrict it.
    """
    if policy != "registered":
        unpickler.remove()
        return
    if difference := unpickler.mismatch():
        raise RuntimeError(f"request_policy 'registered' is refused: {difference}")
    unpickler.install()
