"""The pages of torch's debug server, where they are served: in a process of their own.

Not imported before a program starts that server, because it needs packages that Weft does not.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.debug._debug_handlers import FlightRecorderHandler, default_handlers

from weft._torch.patches.flight_recorder import PAGE, WITHOUT
from weft._torch.patches.patch import Function, patch

_TORCHS = "fr_trace_json"


@patch("torch.distributed.debug._debug_handlers:fetch_all", "(endpoint, args='')", without=WITHOUT)
def fetch_all(upstream: Function, endpoint: str, args: str = "") -> Any:
    """Asks all workers for the page that has Weft's operations."""
    return upstream(PAGE if endpoint == _TORCHS else endpoint, args)


fetch_all.install()


class FlightRecorder(FlightRecorderHandler):
    """torch's. Its name lets a spawned server import this module, which installs the patch."""


def handlers() -> list[object]:
    """torch's, in its order."""
    return [
        FlightRecorder() if isinstance(one, FlightRecorderHandler) else one
        for one in default_handlers()
    ]
