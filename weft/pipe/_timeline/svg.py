"""A timeline as a picture: what was measured, the schedule on paper below it on the same scale.

One lane for each stage or worker; its grey is the bubble. The SVG is written here, without a library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from weft.pipe._timeline.events import Event, RecordedMiniBatch

# The palette of Okabe and Ito for colour-blind readers; text on it is white or dark for contrast.
_COLOURS = {
    "forward": "#0072b2",
    "recompute": "#e69f00",
    "backward": "#009e73",
    "weights": "#cc79a7",
    "copy": "#8a8a8a",
}
_ON = {kind: "#222222" if kind in ("recompute", "weights") else "#ffffff" for kind in _COLOURS}
_INK, _SOFT, _LANE, _GRID = "#222222", "#5f6368", "#ececec", "#ffffff"
_WIDTH, _LEFT, _RIGHT = 1000, 118, 24
_TITLE, _LEGEND, _HEADING, _AXIS, _GAP = 62, 30, 26, 30, 14
_DIGIT = 6.6  # the width of a digit at this size, generously


def draw(
    batches: Sequence[RecordedMiniBatch], batch: RecordedMiniBatch, lanes: Sequence[str]
) -> str:
    """The SVG text for one of the mini-batches."""
    number, count = batches.index(batch) + 1, len(batches)
    ideal = batch.ideal()
    lane = max(14, min(34, 360 // batch.lanes))
    panel = _HEADING + batch.lanes * lane + _AXIS
    height = _TITLE + _LEGEND + 2 * panel + _GAP + 10
    origin = batch.events[0].begin
    span = max(event.end for one in (batch, ideal) for event in one.events) - origin
    scale = _Scale(origin, max(span, 1))
    figures = batch.figures()
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="Helvetica, Arial, sans-serif" '
        f'font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        *_heading(batch, number, count),
        *_legend(batch, _TITLE + 8),
        *_panel(
            f"measured: bubble {figures.bubble:.1%}", batch, scale, _TITLE + _LEGEND, lane, lanes
        ),
    ]
    top = _TITLE + _LEGEND + panel + _GAP
    title = (
        f"the schedule {batch.schedule} on paper, stages of one length: bubble "
        f"{figures.ideal_bubble:.1%}"
    )
    lines += _panel(title, ideal, scale, top, lane, lanes)
    return "\n".join([*lines, "</svg>", ""])


class _Scale:
    """Converts a time to a horizontal position."""

    def __init__(self, origin: int, span: int) -> None:
        self.origin, self.span = origin, span
        self.width = _WIDTH - _LEFT - _RIGHT

    def x(self, time: float) -> float:
        return _LEFT + (time - self.origin) / self.span * self.width

    def ticks(self) -> Iterator[tuple[float, str]]:
        """About eight round times, with their labels in a unit that fits."""
        units = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))
        unit, name = next(one for one in units if self.span >= one[0])
        rough = self.span / unit / 8
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        digits = max(0, -math.floor(math.log10(step)))
        for count in range(int(self.span / unit / step) + 1):
            label = f"{count * step:.{digits}f}"
            yield self.x(self.origin + count * step * unit), f"{label} {name}" if count else "0"


def _text(x: float, y: float, text: str, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{extra}>{escape(text)}</text>'


def _heading(batch: RecordedMiniBatch, number: int, count: int) -> Iterator[str]:
    which = "" if count == 1 else f", mini-batch {number} of {count} (the median one)"
    figures = batch.figures()
    title = f"Pipeline: {figures.stages} stages, {figures.micro_batches} micro-batches{which}"
    yield _text(20, 28, title, ' font-size="17" font-weight="bold"')
    means = ", ".join(f"{kind} {_time(ms)}" for kind, ms in figures.mean_ms.items())
    below = f"{_time(figures.seconds * 1e3)} at work; mean task: {means}"
    yield _text(20, 50, below, f' fill="{_SOFT}" font-size="13"')


def _time(ms: float) -> str:
    return f"{ms * 1e3:.0f} µs" if ms < 1 else f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1e3:.2f} s"


def _legend(batch: RecordedMiniBatch, y: float) -> Iterator[str]:
    x = 20.0
    present = {event.kind for event in batch.events}
    entries = [(kind, colour) for kind, colour in _COLOURS.items() if kind in present]
    for kind, colour in [*entries, ("bubble", _LANE)]:
        yield f'<rect x="{x:.1f}" y="{y}" width="14" height="14" rx="2" fill="{colour}"/>'
        yield _text(x + 20, y + 11.5, kind)
        x += 20 + 7 * len(kind) + 24
    yield _text(x, y + 11.5, "the number is the micro-batch's", f' fill="{_SOFT}"')


def _panel(
    title: str, batch: RecordedMiniBatch, scale: _Scale, top: float, lane: int, lanes: Sequence[str]
) -> Iterator[str]:
    yield _text(20, top + 16, title, ' font-size="13" font-weight="bold"')
    top += _HEADING
    bottom = top + batch.lanes * lane
    for number in range(batch.lanes):
        y = top + number * lane
        name = lanes[number] if number < len(lanes) else f"stage {number}"
        yield _text(_LEFT - 10, y + lane / 2 + 4, name, ' text-anchor="end"')
        yield (
            f'<rect x="{_LEFT}" y="{y + 1}" width="{scale.width}" height="{lane - 2}" fill="{_LANE}"/>'
        )
    yield from _pause(batch, scale, top, bottom)
    for x, label in scale.ticks():
        yield f'<path d="M{x:.1f} {top}V{bottom}" stroke="{_GRID}" stroke-width="1"/>'
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="{_SOFT}"/>'
        anchor = ' text-anchor="middle"' if x < _WIDTH - 50 else ' text-anchor="end"'
        yield _text(x, bottom + 19, label, f' font-size="11" fill="{_SOFT}"{anchor}')
    yield f'<path d="M{_LEFT} {bottom}h{scale.width}" stroke="{_SOFT}" stroke-width="0.8"/>'
    numbered = _numbered(batch, scale)
    for event in batch.events:
        place = top + batch.lane(event) * lane
        opacity = max(0.4, 1 - 0.3 * batch.turn(event.stage))
        yield from _bar(event, scale, place, lane, opacity, event.kind in numbered)


def _pause(batch: RecordedMiniBatch, scale: _Scale, top: float, bottom: float) -> Iterator[str]:
    """Blanks the lanes while the caller computes the loss: that time is no bubble."""
    if len(batch.phases) == 2:
        left = scale.x(max(event.end for event in batch.forward))
        width = scale.x(min(event.begin for event in batch.backward)) - left
        if width > 2:
            shape = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{bottom - top}"'
            yield f'<rect {shape} fill="#ffffff"><title>between forward and backward</title></rect>'


def _numbered(batch: RecordedMiniBatch, scale: _Scale) -> set[str]:
    """The kinds whose bars have room for a number, judged by their mean length."""
    room = _DIGIT * len(str(batch.micro_batches - 1)) + 3
    means = batch.figures().mean_ms
    return {kind for kind, ms in means.items() if ms * 1e6 / scale.span * scale.width > room}


def _bar(
    event: Event, scale: _Scale, top: float, lane: int, opacity: float, numbered: bool
) -> Iterator[str]:
    left, right = scale.x(event.begin), scale.x(event.end)
    copying = event.kind == "copy"
    # Copies run beside the stage's work, so they are a thin bar at the lane's bottom.
    y = top + (lane - 6 if copying else 1)
    size = 4 if copying else lane - 2
    width = max(right - left - 0.8, 0.6)  # a gap between neighbours
    micro = event.micro_batch
    lasted = _time((event.end - event.begin) / 1e6)
    hint = f"{event.kind} of micro-batch {micro}, stage {event.stage}: {lasted}"
    yield (
        f'<rect x="{left:.2f}" y="{y:.1f}" width="{width:.2f}" height="{size}" '
        f'fill="{_COLOURS[event.kind]}" fill-opacity="{opacity:.2g}"><title>{escape(hint)}</title></rect>'
    )
    if numbered and width > _DIGIT * len(str(micro)) + 1:
        middle = top + lane / 2 + 4
        yield _text(
            left + width / 2,
            middle,
            str(micro),
            f' text-anchor="middle" font-size="11" fill="{_ON[event.kind]}" pointer-events="none"',
        )
