"""What a worker's Python logging is given, kept in it for its test."""

from __future__ import annotations

import logging

_records: list[tuple[str, str, str]] = []


class _Keeper(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _records.append((record.name, record.levelname, record.getMessage()))


def keep_log(level: int | None = None) -> None:
    """Before this worker joins: a handler, as a program would have, and the level of Weft's logger."""
    logging.getLogger().addHandler(_Keeper())
    if level is not None:
        logging.getLogger("weft").setLevel(level)


def logged() -> list[tuple[str, str, str]]:
    """Logger, level and text of each line so far."""
    return list(_records)
