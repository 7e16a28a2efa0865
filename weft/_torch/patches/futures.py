"""The patch of ``Future.wait``: a wait that Ctrl-C ends."""

from __future__ import annotations

from typing import Any

from weft import _C
from weft._torch.patches.patch import Function, patch


@patch(
    "torch._C:Future.wait",
    "(self)",
    without="Ctrl-C does not end a wait for a future of RPC.",
)
def wait(upstream: Function, self: Any) -> Any:
    """Looks for signals while it waits; torch's wait runs their handlers when it has ended."""
    if not self.done() and _C._weft_is_current():
        _C._await(self)
    return upstream(self)
