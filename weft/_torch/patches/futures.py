"""Patches of futures: a wait that Ctrl-C ends, and callbacks with their own call's deadline."""

from __future__ import annotations

from typing import Any

from weft import _C
from weft._torch.patches.patch import Function, patch

_OTHER_CALLS_DEADLINE = (
    "A callback of a future has the deadline of whichever call completes the future, not of the "
    "call in which it was registered."
)


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


@patch("torch._C:Future.then", "(self, arg0)", without=_OTHER_CALLS_DEADLINE)
def then(upstream: Function, self: Any, callback: Any) -> Any:
    """The callback runs on the thread that completes the future, which may serve another call."""
    return upstream(self, _of_this_call(self, callback))


@patch("torch._C:Future.add_done_callback", "(self, arg0)", without=_OTHER_CALLS_DEADLINE)
def add_done_callback(upstream: Function, self: Any, callback: Any) -> None:
    """As :data:`then`."""
    return upstream(self, _of_this_call(self, callback))


def _of_this_call(future: Any, callback: Any) -> Any:
    # A future that is done runs it here and now, and torch refuses what is no function.
    if future.done() or not callable(callback) or not _C._weft_is_current():
        return callback
    return _C._with_deadline_of_this_call(callback)
