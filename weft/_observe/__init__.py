"""What a process shows of itself while it runs: logs, what it waits for, figures."""

from __future__ import annotations

from weft._observe import exporter, flight, hangs, logs


def start() -> None:
    """Called when this process joins a group; a second call changes nothing."""
    logs.connect()
    flight.start()
    hangs.start()
    exporter.start()
