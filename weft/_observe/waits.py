"""What this process waits for, and what its agent and groups tell of themselves."""

from __future__ import annotations

import dataclasses

from weft._torch import current

_MOST_CALLS = 100


@dataclasses.dataclass(frozen=True)
class Waiting:
    """One operation that has not ended.

    ::

        slow = [one for one in weft.who_waits() if one.seconds > 10]

    Attributes:
        kind: ``"call"``, ``"collective"``, or ``"message"`` (a send or a receive).
        what: of a call ``script``, ``python``, ``remote``, ``fetch`` (an RRef's value) or ``other``;
            of a collective or a message its name.
        whom: the worker that is called, or the group of the ranks.
        seconds: since when.
        timeout: seconds after which it fails; 0: never.
        number: how many collectives the group has had with this one; 0 for others.
        ranks: those of the group that are awaited, as far as this rank can tell; empty for a receive
            from any rank.
    """

    kind: str
    what: str
    whom: str
    seconds: float
    timeout: float
    number: int = 0
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        limit = f", its timeout is {self.timeout:g} s" if self.timeout else ", without a timeout"
        since = f"for {self.seconds:.0f} s{limit}"
        if self.kind == "call":
            call = "a call" if self.what == "other" else f"a {self.what} call"
            return f"{call} waits for worker '{self.whom}' {since}"
        group = current.group_text(self.whom)
        if self.kind == "message":
            rank = f"rank {self.ranks[0]}" if self.ranks else "any rank"
            return f"{self.what} of {group} waits for {rank} {since}"
        return f"{self.what}, collective {self.number} of {group}, runs {since}{self._awaited()}"

    def _awaited(self) -> str:
        if not self.ranks:
            return ""
        word = "rank" if len(self.ranks) == 1 else "ranks"
        return f"; it waits for {word} {', '.join(map(str, self.ranks))}"


def who_waits() -> list[Waiting]:
    """What this process waits for: calls to other workers, collectives, and messages; the longest
    first.

    ::

        for one in weft.who_waits():
            print(one)

    Any thread may ask, also while the others wait. Of calls the 100 oldest are listed, of messages
    those for which a thread waits. What is on CUDA tensors is not listed.
    """
    found = []
    agent = current.agent()
    if agent is not None:
        for worker, kind, seconds, timeout in agent._waiting_calls(_MOST_CALLS):
            found.append(Waiting("call", kind, worker, seconds, timeout))
    for group, backend in current.named_backends():
        number, _, title, seconds, timeout, ranks, _ = backend._activity()
        if title:
            found.append(
                Waiting("collective", title, group, seconds, timeout, number, tuple(ranks))
            )
        for title, rank, seconds, timeout in backend._waiting_messages():
            ranks = [rank] if rank >= 0 else []
            found.append(Waiting("message", title, group, seconds, timeout, 0, tuple(ranks)))
    return sorted(found, key=lambda one: -one.seconds)


def debug_info() -> dict[str, str]:
    """What the RPC agent and the process groups of this process tell of themselves.

    ::

        info = weft.debug_info()
        print(info.get("agent.calls_sent", "no RPC here"))

    Returns:
        Texts by key; docs/reference/debug_info.md has the keys. Empty where there is neither.
    """
    agent = current.agent()
    info: dict[str, str] = dict(agent.get_debug_info()) if agent is not None else {}
    for group, backend in current.named_backends():
        calls, busy, title, *_ = backend._activity()
        info[f"group.{group}.path"] = backend.path
        info[f"group.{group}.collectives"] = str(calls)
        info[f"group.{group}.collective_seconds"] = f"{busy:.6f}"
        info[f"group.{group}.running"] = title
    return info
