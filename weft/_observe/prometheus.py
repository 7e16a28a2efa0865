"""The figures of this process as Prometheus text."""

from __future__ import annotations

from weft._observe.metrics import PEER_NUMBERS, Latencies, Metrics, metrics

# What each figure is, by its name without weft_. Of the agent's numbers the rest are counters.
_HELP = {
    "bytes_received": "Bytes from all workers.",
    "bytes_sent": "Bytes to all workers.",
    "calls_failed": "Calls that ended without an answer.",
    "calls_sent": "Calls made.",
    "calls_served": "Requests of others that were run.",
    "calls_timed_out": "Calls given up because their timeout was over.",
    "collective_seconds": "How long collectives ran, in all.",
    "collective_wait_seconds": "How long this rank waited because that rank was the last to come.",
    "collectives": "Collectives called.",
    "connections_refused": "Connections refused or cut off before the handshake was over.",
    "device_bytes_staged": "Bytes of tensors on accelerators sent through host memory.",
    "oldest_call_seconds": "For how long the call that waits longest has waited; 0: none waits.",
    "peer_arena_bytes_sent": "Bytes to the worker through shared memory.",
    "peer_arena_fallbacks": "Large buffers to the worker that found no room in shared memory.",
    "peer_bytes_received": "Bytes from the worker.",
    "peer_bytes_sent": "Bytes to the worker.",
    "peer_messages_received": "Messages from the worker.",
    "peer_messages_sent": "Messages to the worker.",
    "peer_reconnects": "Connections to the worker made again after one broke.",
    "requests_dropped": "Requests not run because their callers had given up.",
    "requests_refused": "Requests refused by the policy or by a limit.",
    "requests_refused_by_policy": "Requests refused by the policy.",
    "round_trip_seconds": "Round trips of the calls made, by kind.",
    "rref_forks_released": "Forks of RRefs released because their worker is lost.",
    "rref_repeats_ignored": "Messages about RRefs that came a second time.",
    "rrefs_held": "References here to values of other workers.",
    "rrefs_owned": "Values here that others refer to.",
    "zero_copy_bytes_sent": "Bytes sent as mappings of memory of weft.empty.",
}
_GAUGES = {
    "client_active_calls": "Calls made that wait for an answer.",
    "server_active_calls": "Requests that run.",
    "server_active_async_calls": "Requests that run and have returned a future.",
    "thread_pool_size": "Threads that serve, at most.",
    "num_idle_threads": "Of these, those that could serve now.",
    "receive_pool_bytes": "Memory kept for large tensors that arrive through sockets.",
    "device_bytes_lent": "Bytes of CUDA tensors that other workers of the host read.",
    "device_messages_held": "Messages sent whose tensors are still being read.",
    "exported_bytes_held": "Bytes of memory of weft.empty in use.",
    "gil_average_wait_time_us": "Microseconds that a request waits for Python's lock.",
    "peer_queued_bytes": "Bytes that the worker has not taken yet.",
}
_REFUSED = "connections_refused_by_"


def _kind(name: str) -> str:
    return "gauge" if name in _GAUGES else "counter"


def _help(name: str) -> str:
    if name.startswith(_REFUSED):
        cause = name.removeprefix(_REFUSED)
        return f"Connections refused before the handshake was over, with the cause {cause}."
    return _GAUGES.get(name) or _HELP.get(name, "")


def metrics_text() -> str:
    """What :func:`weft.metrics` gives, in Prometheus' text format.

    ::

        print(weft.metrics_text())

    Names begin with ``weft_``, those of counters end in ``_total``; labels are ``kind``, ``peer``,
    ``group`` and ``rank``.
    """
    now = metrics()
    lines = _Lines()
    for name, value in sorted(now.counters.items()):
        if not name.startswith("round_trip_us_"):  # the histograms say it
            lines.add(name, _kind(name), {}, value)
    lines.add("oldest_call_seconds", "gauge", {}, now.oldest_call)
    lines.add("rrefs_owned", "gauge", {}, now.rrefs_owned)
    lines.add("rrefs_held", "gauge", {}, now.rrefs_held)
    for what in PEER_NUMBERS:
        name = f"peer_{what}"
        for peer, figures in sorted(now.peers.items()):
            lines.add(name, _kind(name), {"peer": peer}, getattr(figures, what))
    _add_groups(lines, now)
    for kind, latencies in sorted(now.round_trips.items()):
        _add_histogram(lines, kind, now.bounds, latencies)
    return lines.text()


def _add_groups(lines: _Lines, now: Metrics) -> None:
    for what, name in (("collectives", "collectives"), ("seconds", "collective_seconds")):
        for group, figures in sorted(now.groups.items()):
            lines.add(name, "counter", {"group": group}, getattr(figures, what))
    for group, figures in sorted(now.groups.items()):
        for rank, seconds in figures.waited.items():
            labels = {"group": group, "rank": str(rank)}
            lines.add("collective_wait_seconds", "counter", labels, seconds)


def _add_histogram(lines: _Lines, kind: str, bounds: list[float], found: Latencies) -> None:
    name = lines.declare("round_trip_seconds", "histogram")
    for bound, count in zip([*map(repr, bounds), "+Inf"], found.counts, strict=True):
        lines.sample(f"{name}_bucket", {"kind": kind, "le": bound}, count)
    lines.sample(f"{name}_sum", {"kind": kind}, found.seconds)
    lines.sample(f"{name}_count", {"kind": kind}, found.counts[-1])


class _Lines:
    def __init__(self) -> None:
        self._lines: list[str] = []
        self._declared: set[str] = set()

    def declare(self, name: str, kind: str) -> str:
        """Says once what it is; returns its whole name."""
        whole = f"weft_{name}_total" if kind == "counter" else f"weft_{name}"
        if whole not in self._declared:
            self._declared.add(whole)
            self._lines += [f"# HELP {whole} {_help(name)}", f"# TYPE {whole} {kind}"]
        return whole

    def sample(self, name: str, labels: dict[str, str], value: float) -> None:
        inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        self._lines.append(f"{name}{{{inside}}} {value!r}" if inside else f"{name} {value!r}")

    def add(self, name: str, kind: str, labels: dict[str, str], value: float) -> None:
        self.sample(self.declare(name, kind), labels, value)

    def text(self) -> str:
        return "\n".join([*self._lines, ""])


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
