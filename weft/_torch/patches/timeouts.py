"""The patch of ``rpc._set_rpc_timeout``: the default of all calls is a time, or 0 for none."""

from __future__ import annotations

from weft._torch import current
from weft._torch.patches.patch import Function, patch

# torch counts milliseconds in an int, and casts what does not fit to anything.
_LONGEST = 2_000_000.0


@patch(
    "torch.distributed.rpc:_set_rpc_timeout",
    "(arg0)",
    without="rpc._set_rpc_timeout over Weft takes nan and negative numbers for no limit.",
)
def set_rpc_timeout(upstream: Function, seconds: float) -> None:
    """Refuses what is no time; a longer one than torch can count is no limit."""
    if current.agent() is not None:
        if not seconds >= 0:
            raise ValueError(
                f"timeout must be a number of seconds that is not negative, got {seconds}"
            )
        # The shortest time is not 0 milliseconds, which is no limit.
        seconds = 0.0 if seconds > _LONGEST or not seconds else max(seconds, 0.001)
    upstream(seconds)
