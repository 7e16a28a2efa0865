"""Ports for tests."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """A port of loopback that is free, and that the system will not give to anybody meanwhile: it takes
    those of its own choice from 32768 on."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
