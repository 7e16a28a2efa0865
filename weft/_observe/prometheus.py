"""The figures of this process as Prometheus text."""

from __future__ import annotations

from weft._observe.metrics import Latencies, Metrics, metrics

# Counters of the agent that may also fall.
_GAUGES = {
    "client_active_calls",
    "server_active_calls",
    "server_active_async_calls",
    "thread_pool_size",
    "num_idle_threads",
    "receive_pool_bytes",
    "device_bytes_lent",
    "device_messages_held",
    "exported_bytes_held",
    "gil_average_wait_time_us",
}
_PEER_GAUGES = {"queued_bytes"}
_PEER_FIGURES = (
    *("bytes_sent", "bytes_received", "messages_sent", "messages_received"),
    *("queued_bytes", "reconnects", "arena_bytes_sent", "arena_fallbacks"),
)


def metrics_text() -> str:
    """What :func:`weft.metrics` gives, in Prometheus' text format.

    ::

        print(weft.metrics_text())

    Names begin with ``weft_``; labels are ``kind``, ``peer``, ``group`` and ``rank``.
    """
    now = metrics()
    lines = _Lines()
    for name, value in sorted(now.counters.items()):
        if not name.startswith("round_trip_us_"):  # the histograms say it
            lines.add(f"weft_{name}", "gauge" if name in _GAUGES else "counter", {}, value)
    lines.add("weft_oldest_call_seconds", "gauge", {}, now.oldest_call)
    lines.add("weft_rrefs_owned", "gauge", {}, now.rrefs_owned)
    lines.add("weft_rrefs_held", "gauge", {}, now.rrefs_held)
    for what in _PEER_FIGURES:
        kind = "gauge" if what in _PEER_GAUGES else "counter"
        for peer, figures in sorted(now.peers.items()):
            lines.add(f"weft_peer_{what}", kind, {"peer": peer}, getattr(figures, what))
    _add_groups(lines, now)
    for kind, latencies in sorted(now.round_trips.items()):
        _add_histogram(lines, kind, now.bounds, latencies)
    return lines.text()


def _add_groups(lines: _Lines, now: Metrics) -> None:
    for what in ("collectives", "seconds"):
        name = "weft_collectives" if what == "collectives" else "weft_collective_seconds"
        for group, figures in sorted(now.groups.items()):
            lines.add(name, "counter", {"group": group}, getattr(figures, what))
    for group, figures in sorted(now.groups.items()):
        for rank, seconds in figures.waited.items():
            labels = {"group": group, "rank": str(rank)}
            lines.add("weft_collective_wait_seconds", "counter", labels, seconds)


def _add_histogram(lines: _Lines, kind: str, bounds: list[float], found: Latencies) -> None:
    name = "weft_round_trip_seconds"
    lines.declare(name, "histogram")
    for bound, count in zip([*map(repr, bounds), "+Inf"], found.counts, strict=True):
        lines.sample(f"{name}_bucket", {"kind": kind, "le": bound}, count)
    lines.sample(f"{name}_sum", {"kind": kind}, found.seconds)
    lines.sample(f"{name}_count", {"kind": kind}, found.counts[-1])


class _Lines:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._declared: set[str] = set()

    def declare(self, name: str, kind: str) -> None:
        if name not in self._declared:
            self._declared.add(name)
            self._lines.append(f"# TYPE {name} {kind}")

    def sample(self, name: str, labels: dict[str, str], value: float) -> None:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        self._lines.append(f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}")

    def add(self, name: str, kind: str, labels: dict[str, str], value: float) -> None:
        self.declare(name, kind)
        self.sample(name, labels, value)

    def text(self) -> str:
        return "\n".join([*self._lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
