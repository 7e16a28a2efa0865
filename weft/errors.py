"""The exception of a remote function whose own type cannot be raised here."""

from __future__ import annotations


class RemoteError(RuntimeError):
    """A remote function raised an exception whose type cannot be made by this worker.

    Its text names the type and contains the remote traceback. Where this worker has the type, and
    only its constructor takes no text, the error is of that type, too. Types that Python has
    everywhere arrive as themselves::

        try:
            rpc.rpc_sync("worker0", int, args=("four",))
        except ValueError as error:  # RemoteError, had it been a type of worker0's own
            print(error)
    """
