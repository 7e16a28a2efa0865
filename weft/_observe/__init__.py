"""What a process shows of itself while it runs: logs, what it waits for, figures."""

from __future__ import annotations

from weft._observe import exporter, flight, hangs, held_gil, logs


def start() -> None:
    """Called when this process joins a group; a second call changes nothing."""
    logs.connect()
    flight.start()
    hangs.start()
    exporter.start()
    held_gil.start(hangs.limit())


def serve_peers(policy: str) -> None:
    """Called before this process joins an RPC group; peers see stacks where they may ask Python."""
    held_gil.answer_peers(
        policy == "any" or (policy == "registered" and exporter.address() is not None)
    )
