"""The pages of torch's debug server, where they are served: in a process of their own."""

from __future__ import annotations

from torch.distributed.debug._debug_handlers import FlightRecorderHandler, default_handlers

from weft._torch.patches.debug_server import fetch_all

fetch_all.install()


class FlightRecorder(FlightRecorderHandler):
    """torch's. Its name lets a spawned server import this module, which installs the patch."""


def handlers() -> list[object]:
    """torch's, in its order."""
    return [
        FlightRecorder() if isinstance(one, FlightRecorderHandler) else one
        for one in default_handlers()
    ]
