"""Draws what a run has shown, as SVG: a trace, the text of a terminal, lines over steps."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

Event = dict[str, Any]
_COLOURS = {"weft::rpc": "#0072b2", "weft:": "#009e73", "aten::": "#e69f00"}
_WIDTH, _LEFT, _RIGHT, _ROW = 1000, 150, 20, 16
_COLUMNS = 118  # of a terminal
_DEPTHS = 3  # ranges within ranges that are shown


def _write(path: Path, height: float, parts: list[str], font: str = "sans-serif") -> None:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" '
        f'font-family="{font}" font-size="12">'
    )
    path.write_text("\n".join([head, *parts, "</svg>", ""]))


def _rectangle(x: float, y: float, width: float, height: float, colour: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    )


def _text(x: float, y: float, text: str, colour: str = "#202124", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" {more}>{escape(text)}</text>'


def terminal(lines: list[str], path: Path) -> None:
    """Lines as a terminal shows them; long ones are wrapped."""
    shown = [
        part for line in lines for part in textwrap.wrap(line, _COLUMNS, drop_whitespace=False)
    ]
    height = len(shown) * 18 + 20
    rows = [
        _text(12, 22 + 18 * number, line, "#e8eaed", 'xml:space="preserve"')
        for number, line in enumerate(shown)
    ]
    _write(path, height, [_rectangle(0, 0, _WIDTH, height, "#202124"), *rows], "monospace")


def chart(title: str, lines: dict[str, list[float]], path: Path) -> None:
    """Each line over its index, from 0 up."""
    top, bottom, left, right = 40, 240, 60, _WIDTH - 120
    most = max(max(values) for values in lines.values()) or 1.0
    parts = [_rectangle(0, 0, _WIDTH, 270, "#ffffff"), _text(left, 22, title)]
    parts += [
        f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#5f6368"/>',
        _text(left - 8, bottom, "0", more='text-anchor="end"'),
        _text(left - 8, top + 8, f"{most:.2f}", more='text-anchor="end"'),
    ]
    for (name, values), colour in zip(lines.items(), ("#d55e00", "#0072b2"), strict=True):
        xs = (left + (right - left) * number / (len(values) - 1) for number in range(len(values)))
        ys = [bottom - (bottom - top) * value / most for value in values]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(_text(right + 8, ys[-1] + 4, name, colour))
    parts.append(_text(right, bottom + 18, str(len(values) - 1), more='text-anchor="end"'))
    _write(path, 270, parts)


def trace(source: Path, path: Path) -> None:
    """The threads that have calls: ranges by depth, and the arrows of calls, as Perfetto shows them."""
    events: list[Event] = json.loads(source.read_text())["traceEvents"]
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    ranges = [one for one in events if one["ph"] == "X" and _colour(one)]
    calls = [one for one in ranges if "call" in one.get("args", {})]
    begin = min(one["ts"] for one in calls)
    end = max(one["ts"] + one["dur"] for one in calls)
    scale = (_WIDTH - _LEFT - _RIGHT) / (end - begin)
    threads = sorted({(one["pid"], one["tid"]) for one in calls})
    tops = {thread: 12 + number * (_DEPTHS * _ROW + 16) for number, thread in enumerate(threads)}
    height = len(threads) * (_DEPTHS * _ROW + 16) + 40
    parts = [_TIP, _rectangle(0, 0, _WIDTH, height, "#ffffff")]
    for thread, top in tops.items():
        parts.append(_text(8, top + 12, f"{names[thread[0]].partition(' ')[0]}, {thread[1]}"))
        ends: list[float] = []
        for one in ranges:
            if (one["pid"], one["tid"]) != thread or not begin <= one["ts"] <= end:
                continue
            ends = [until for until in ends if until > one["ts"]]
            if len(ends) < _DEPTHS:
                parts += _range(
                    one, _LEFT + (one["ts"] - begin) * scale, top + len(ends) * _ROW, scale
                )
            ends.append(one["ts"] + one["dur"])
    for first, last in _arrows(events, set(threads)):
        ends_at = [
            (_LEFT + (one["ts"] - begin) * scale, tops[one["pid"], one["tid"]] + _ROW / 2)
            for one in (first, last)
        ]
        (x1, y1), (x2, y2) = ends_at
        parts.append(
            f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#202124" marker-end="url(#tip)"/>'
        )
    parts.append(_text(_LEFT, height - 10, "0", "#5f6368"))
    end_text = f"{(end - begin) / 1e3:.1f} ms"
    parts.append(_text(_WIDTH - _RIGHT, height - 10, end_text, "#5f6368", 'text-anchor="end"'))
    _write(path, height, parts)


_TIP = (
    '<defs><marker id="tip" orient="auto" markerWidth="7" markerHeight="7" refX="6" refY="3">'
    '<path d="M0 0L6 3L0 6z"/></marker></defs>'
)


def _colour(event: Event) -> str:
    return next((one for start, one in _COLOURS.items() if event["name"].startswith(start)), "")


def _range(event: Event, x: float, y: float, scale: float) -> list[str]:
    """A bar that shows as much of the name as it has room for, and all of it under the pointer."""
    width = max(event["dur"] * scale, 0.8)
    name = event["name"].removeprefix("weft::rpc ")
    bar = _rectangle(x, y, width, _ROW - 2, _colour(event))
    parts = [f"<g><title>{escape(name)}</title>{bar}</g>"]
    label = name[: int(width / 7)]
    return [*parts, _text(x + 3, y + 11, label, "#ffffff")] if len(label) > 3 else parts


def _arrows(events: list[Event], threads: set[tuple[int, int]]) -> list[tuple[Event, Event]]:
    ends: dict[int, list[Event]] = {}
    for one in events:
        if one.get("cat") == "weft::rpc" and one["ph"] in "sf":
            ends.setdefault(one["id"], []).append(one)
    return [
        (first, last)
        for first, last in ends.values()
        if all((one["pid"], one["tid"]) in threads for one in (first, last))
    ]
