"""The figures of this process, as one object."""

from __future__ import annotations

import dataclasses
from typing import Any

from weft import _C
from weft._observe.waits import who_waits
from weft._torch import current


@dataclasses.dataclass(frozen=True)
class Latencies:
    """A histogram of round trips.

    Attributes:
        counts: how many took at most the bound of the same place in :attr:`Metrics.bounds`; the
            last one counts all.
        seconds: the sum of all.
    """

    counts: list[int]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Peer:
    """What went between this worker and another one.

    Attributes:
        arena_bytes_sent: the part of ``bytes_sent`` that went through shared memory.
        arena_fallbacks: large buffers that found no room there.
    """

    bytes_sent: int
    bytes_received: int
    messages_sent: int
    messages_received: int
    queued_bytes: int
    reconnects: int
    transport: str
    arena_bytes_sent: int
    arena_fallbacks: int


PEER_NUMBERS = tuple(one.name for one in dataclasses.fields(Peer) if one.name != "transport")


@dataclasses.dataclass(frozen=True)
class Group:
    """The collectives of a process group on CPU tensors.

    Attributes:
        waited: by rank, the seconds that this rank has waited in all because that rank was the last
            to come. The straggler has the most; waits too short to sleep are not counted.
    """

    path: str
    collectives: int
    seconds: float
    waited: dict[int, float]


@dataclasses.dataclass(frozen=True)
class Metrics:
    """Figures of this process since it joined.

    ::

        sent = weft.metrics().counters["calls_sent"]

    Attributes:
        counters: the numbers of :func:`weft.debug_info` that belong to the agent, by their names
            without ``agent.``: ``calls_sent``, ``client_active_calls``, ``requests_refused``, …
        oldest_call: for how many seconds the call that waits longest has waited; 0: none waits.
        bounds: the bounds of the histograms, in seconds.
        round_trips: by kind of call (:class:`weft.Waiting` has the kinds).
        peers: by the name of the worker.
        groups: by the name of the process group.
        rrefs_owned: values here that others refer to.
        rrefs_held: references here to values of others.
    """

    counters: dict[str, float]
    oldest_call: float
    bounds: list[float]
    round_trips: dict[str, Latencies]
    peers: dict[str, Peer]
    groups: dict[str, Group]
    rrefs_owned: int
    rrefs_held: int


def metrics() -> Metrics:
    """What this process has done so far, in figures.

    ::

        print(weft.metrics().counters.get("calls_sent", 0))

    Any thread. Where this process is in no RPC group the figures of RPC are empty.
    """
    agent = current.agent()
    info = dict(agent.get_debug_info()) if agent is not None else {}
    latencies = agent._round_trips() if agent is not None else {}
    report = agent.rref_report() if agent is not None else []
    calls = [one.seconds for one in who_waits() if one.kind == "call"]
    return Metrics(
        counters=_counters(info),
        oldest_call=max(calls, default=0.0),
        bounds=list(_C._round_trip_bounds()),
        round_trips={kind: Latencies(*each) for kind, each in latencies.items()},
        peers=_peers(info),
        groups={name: _group(backend) for name, backend in current.named_backends()},
        rrefs_owned=sum(bool(row[1]) for row in report),
        rrefs_held=sum(not row[1] for row in report),
    )


def _group(backend: Any) -> Group:
    calls, seconds, *_, waited = backend._activity()
    ranks = {rank: total for rank, total in enumerate(waited) if total}
    return Group(backend.path, calls, seconds, ranks)


_PEER = "agent.peer."


def _counters(info: dict[str, str]) -> dict[str, float]:
    own = {key: text for key, text in info.items() if not key.startswith(_PEER)}
    return {key.removeprefix("agent."): float(text) for key, text in own.items()}


def _peers(info: dict[str, str]) -> dict[str, Peer]:
    found: dict[str, dict[str, str]] = {}
    for key, text in info.items():
        if key.startswith(_PEER):
            name, _, what = key.removeprefix(_PEER).rpartition(".")
            found.setdefault(name, {})[what] = text
    return {
        name: Peer(**{one: int(row[one]) for one in PEER_NUMBERS}, transport=row["transport"])
        for name, row in found.items()
    }
