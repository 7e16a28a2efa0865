"""Which operators of ``torch.ops.weft`` have effects: C++ registrations have no place for it."""

from __future__ import annotations

import torch
import torch.fx
from torch._library.effects import EffectType

# Other workers and ranks feel whether these run, also when nobody uses the result, and in which order: ranks
# that compile different graphs must still meet in the same collective.
_WITH_EFFECTS = (
    "call_tensors",
    *("send", "recv", "all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier"),
)


def install() -> None:
    """Keeps compilers from dropping or reordering them."""
    for name in _WITH_EFFECTS:
        operator = getattr(torch.ops.weft, name).default
        torch.fx.node.has_side_effect(operator)
        torch.library._register_effectful_op(operator, EffectType.ORDERED)
