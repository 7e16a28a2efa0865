"""What a check of the doctor says."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One line: ``ok``, ``warn`` or ``FAIL``, and a sentence."""

    level: str
    text: str


def ok(text: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", text)


def warn(text: str) -> Finding:
    """Weft works, with less than it could have."""
    return Finding("warn", text)


def fail(text: str) -> Finding:
    """Weft does not work before this is changed."""
    return Finding("FAIL", text)
