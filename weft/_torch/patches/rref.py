"""Patches of ``PyRRef``: an RRef whose creation failed says why, and nobody waits for its value."""

from __future__ import annotations

import re
from typing import Any

from weft import _C
from weft._torch.forks import forks
from weft._torch.patches.patch import Function, patch

_FAILED = "RRef creation via rpc.remote() timed out"
_WITHOUT = "An RRef whose creation failed says that it timed out, whatever happened."
_FUTURE = {"torch.distributed.rpc:PyRRef._get_future": "(self)"}


def _with_cause(upstream: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces torch's "timed out" by what its future knows: a refusal, an exception, a loss."""
    try:
        return upstream(self, *args, **kwargs)
    except RuntimeError as error:
        cause = _creation_error(self) if _FAILED in str(error) else None
        if cause is None:
            raise
    raise RuntimeError(f"RRef creation via rpc.remote() failed: {cause}")


def _creation_error(rref: Any) -> str | None:
    """Why a failed RRef has no value; None if this worker did not create it."""
    try:
        # The reference is marked as failed right before its future fails (CallCompleter::setError).
        rref._get_future().wait()
    except RuntimeError as error:
        return re.sub(r"^RPCErr:\d+:", "", str(error))  # torch's prefix for the kind of error
    return None


@patch(
    "torch.distributed.rpc:PyRRef.to_here", "(self, timeout=-1.0)", without=_WITHOUT, uses=_FUTURE
)
def to_here(upstream: Function, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Ctrl-C ends the owner's own wait, too; that for another worker ends in RequestClient::send."""
    if _C._weft_is_current():
        _C._await_own_value(self)
    return _with_cause(upstream, self, *args, **kwargs)


@patch(
    "torch.distributed.rpc:PyRRef.local_value",
    "(self)",
    without="An owner's wait for a value that is never created does not end, nor does Ctrl-C end it.",
)
def local_value(upstream: Function, self: Any) -> Any:
    """The call that creates the value may come after the RRef, and may fail."""
    if _C._weft_is_current():
        _C._await_own_value(self)
    return upstream(self)


@patch("torch.distributed.rpc:PyRRef._serialize", "(self)", without=_WITHOUT, uses=_FUTURE)
def serialize(upstream: Function, self: Any) -> tuple[Any, ...]:
    """Forks the RRef for a message."""
    fork = _with_cause(upstream, self)
    forks.add(fork)
    return fork
