"""The patches of torch's RPC unpickler: it imports packages before their modules, and obeys the
request policy ``registered``.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import Any

from torch.distributed.rpc import internal

from weft import _C
from weft._torch.patches.patch import Patch
from weft._torch.restricted_unpickler import RestrictedUnpickler

_UNPICKLER = "torch.distributed.rpc.internal:_unpickler"
_DESERIALIZE = "torch.distributed.rpc.internal:_InternalRPCPickler.deserialize"
_USES = {_DESERIALIZE: "(self, binary_data, tensor_table)"}


class OrderedUnpickler(pickle.Unpickler):
    """Imports packages before what is in them, as another thread may import the same ones.

    Python takes the lock of ``a.b.module`` first, and then imports ``a.b``. Another thread that
    imports ``a.b`` has its lock, and would get a deadlock error where ``a`` imports the module.
    """

    def find_class(self, module: str, name: str) -> Any:
        if module not in sys.modules:
            parents = module.split(".")
            for end in range(1, len(parents)):
                importlib.import_module(".".join(parents[:end]))
        return super().find_class(module, name)


ordered = Patch(
    _UNPICKLER,
    "(file, ...)",
    without="A call that comes while this process imports a package may end the import with an error.",
    replacement=lambda upstream, file: (
        OrderedUnpickler(file) if _C._weft_is_current() else upstream(file)
    ),
    caller=_DESERIALIZE,
    uses=_USES,
)
restricted = Patch(
    _UNPICKLER,
    "(file, ...)",
    without="The request policy 'registered' cannot be kept.",
    replacement=lambda upstream, file: RestrictedUnpickler(file),
    refuses=lambda: True,
    caller=_DESERIALIZE,
    uses=_USES,
)


def set_policy(policy: str) -> None:
    """Makes torch's RPC unpickler obey ``policy`` from now on.

    Raises:
        RuntimeError: this torch does not unpickle where the policy ``registered`` can restrict it.
    """
    if policy != "registered":
        restricted.remove()
        return
    if difference := restricted.mismatch():
        raise RuntimeError(f"request_policy 'registered' is refused: {difference}")
    restricted.install()


def unpickler_class() -> type:
    """What unpickles the calls of this process."""
    patched = getattr(internal._unpickler, "_weft_patch", None)
    return RestrictedUnpickler if patched is restricted else OrderedUnpickler
