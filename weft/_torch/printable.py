"""Texts of peers for people to see: they may hold anything."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text, with escapes for what may control a terminal; ends of lines stay."""
    return "".join(one if one.isprintable() or one == "\n" else _escape(one) for one in text)


def _escape(one: str) -> str:
    return one.encode("unicode_escape").decode()
