"""The patch that makes torch's RPC unpickler obey the request policy ``registered``."""

from __future__ import annotations

from weft._torch.patches.patch import Patch
from weft._torch.restricted_unpickler import RestrictedUnpickler

_DESERIALIZE = "torch.distributed.rpc.internal:_InternalRPCPickler.deserialize"

unpickler = Patch(
    "torch.distributed.rpc.internal:_unpickler",
    "(file, ...)",
    without="The request policy 'registered' cannot be kept.",
    replacement=lambda upstream, file: RestrictedUnpickler(file),
    refuses=lambda: True,
    caller=_DESERIALIZE,
    uses={_DESERIALIZE: "(self, binary_data, tensor_table)"},
)


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
