"""Messages of a process group as torch's analysis of flight records can match them."""

from __future__ import annotations

import collections
from typing import Any

from weft._torch import current

Entry = dict[str, Any]


def with_messages_in_pairs(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace with those messages alone that have not ended, in groups of their two ranks.

    torch's analysis awaits an operation on all ranks of its group, and matches messages by their
    place among the group's collectives. So each sender, receiver and tag is a group here, in which
    the messages that have not ended are counted: their order is the same at both ends. One that has
    ended has met the other. A receive from any rank has no other end, and is left out.
    """
    groups = dict(trace.get("pg_config", {}))
    counts: collections.Counter[str] = collections.Counter()
    entries = []
    for one in trace.get("entries", []):
        if "peer" in one:
            pair = _Pair(one) if one["peer"] >= 0 and one["state"] != "completed" else None
            if pair is None or not pair.ends:
                continue
            groups[pair.name] = pair.config()
            counts[pair.name] += 1
            one = pair.entry(one, counts[pair.name])
        entries.append(one)
    return {**trace, "pg_config": groups, "entries": entries}


class _Pair:
    """The group of a message's two ends. No ends: the process group has ended."""

    def __init__(self, one: Entry) -> None:
        group, description = one["process_group"]
        ranks = current.ranks_of(group)
        self.ends: list[int] = []
        if max(one["rank"], one["peer"]) >= len(ranks):
            return
        self._own, self._peer = ranks[one["rank"]], ranks[one["peer"]]
        self.ends = sorted((self._own, self._peer))
        self._word = one["profiling_name"].partition(" ")[0]
        self._arrow = "->" if self._word == "nccl:send" else "<-"
        sender, receiver = (
            (self._own, self._peer) if self._arrow == "->" else (self._peer, self._own)
        )
        tag = f", tag {one['tag']}" if one["tag"] else ""
        self.name = f"{group}: rank {sender} to rank {receiver}{tag}"
        self._description = f"messages in {description}"

    def config(self) -> dict[str, str]:
        return {"name": self.name, "desc": self._description, "ranks": str(self.ends)}

    def entry(self, one: Entry, number: int) -> Entry:
        """Its name has the places of the ranks in the group, of which there are two."""
        places = self.ends.index(self._own), self.ends.index(self._peer)
        return {
            **one,
            "profiling_name": f"{self._word} {places[0]}{self._arrow}{places[1]}",
            "process_group": (self.name, self._description),
            "collective_seq_id": number,
            "p2p_seq_id": number,
        }
