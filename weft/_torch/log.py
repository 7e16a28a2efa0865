"""Lines in Weft's log, from Python. ``weft._observe.logs`` says where they go."""

from __future__ import annotations

from weft import _C

_INFO, _WARNING = 1, 2  # C++'s levels


def inform(text: str) -> None:
    """Logs a line that says what was done."""
    _C._log(_INFO, text)


def warn(text: str) -> None:
    """Logs a line about what did not go as it should."""
    _C._log(_WARNING, text)
