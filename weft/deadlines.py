"""What a function that runs for another worker may ask about its call."""

from __future__ import annotations

from weft import _C


def deadline() -> float | None:
    """How many seconds the caller still waits for the function that runs here.

    This is the rest of the call's timeout, or of the caller's own deadline if that is earlier. Calls
    that the function makes end by this deadline, whatever timeout they are given. Threads that the
    function starts have no deadline.

    ::

        def search(candidates):
            best = None
            for candidate in candidates:
                left = weft.deadline()
                if left is not None and left < 0.1:
                    break  # what there is by now is of use to the caller
                best = max(best or candidate, candidate)
            return best

    Returns:
        Seconds, 0.0 when the time is up; None outside of calls and in one without a timeout.
    """
    return _C._deadline()


def cancelled() -> bool:
    """Whether nobody waits any more for the answer of the function that runs here.

    The caller's timeout has passed, Ctrl-C has ended its ``rpc_sync``, or the caller is lost. The
    function itself decides what it does then; its answer is dropped.

    ::

        def train(model, batches):
            for batch in batches:
                if weft.cancelled():
                    return
                model(batch)

    Returns:
        False also outside of calls.
    """
    return _C._cancelled()
