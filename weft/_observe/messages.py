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
            if one["peer"] < 0 or one["state"] == "completed":
                continue
            pair = _in_pair(one)
            if pair is None:
                continue
            group, one = pair
            groups[group["name"]] = group
            counts[group["name"]] += 1
            one["collective_seq_id"] = one["p2p_seq_id"] = counts[group["name"]]
        entries.append(one)
    return {**trace, "pg_config": groups, "entries": entries}


def _in_pair(one: Entry) -> tuple[dict[str, str], Entry] | None:
    """The group of a message's two ends, and the message in it. None: the process group has ended."""
    name, description = one["process_group"]
    ranks = current.ranks_of(name)
    if max(one["rank"], one["peer"]) >= len(ranks):
        return None
    own, peer = ranks[one["rank"]], ranks[one["peer"]]
    ends = sorted((own, peer))
    word = one["profiling_name"].partition(" ")[0]
    arrow, sender, receiver = ("->", own, peer) if word == "nccl:send" else ("<-", peer, own)
    tag = f", tag {one['tag']}" if one["tag"] else ""
    group = {
        "name": f"{name}: rank {sender} to rank {receiver}{tag}",
        "desc": f"messages in {description}",
        "ranks": str(ends),
    }
    # Its name has the places of the ranks in the group, of which there are two.
    places = f"{ends.index(own)}{arrow}{ends.index(peer)}"
    return group, {
        **one,
        "profiling_name": f"{word} {places}",
        "process_group": (group["name"], group["desc"]),
    }
