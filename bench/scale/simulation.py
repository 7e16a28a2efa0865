"""A discrete-event simulation: ranks that ask one Store, whose server answers one request at a time.

A rank is a generator. It yields what it waits for: a request to the Store (``Ask``), whose answer it is
sent, or a number of seconds.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from bench.scale.costs import Costs

SUM_BITS = 40  # of a counter, as Weft's shutdown barrier has it


@dataclass
class Ask:
    """One request: what it does to the Store, how many keys it names, how many bytes it moves."""

    act: Callable[[dict[Any, Any]], Any]
    keys: int = 1
    bytes: int = 0


Rank = Generator[Any, Any, None]


@dataclass
class Run:
    """What came of it."""

    ranks: int
    seconds: float = 0.0  # until the last rank has ended
    asked: list[int] = field(default_factory=list)  # requests to the Store, by rank
    pings: list[int] = field(default_factory=list)  # messages to other ranks, by rank

    @property
    def messages(self) -> list[int]:
        """All that a rank sends, by rank."""
        return [a + b for a, b in zip(self.asked, self.pings, strict=True)]


class Simulation:
    """Time, the Store, and the ranks that run."""

    def __init__(self, costs: Costs, ranks: int, dead: frozenset[int] = frozenset()) -> None:
        self.costs = costs
        self.now = 0.0
        self.store: dict[Any, Any] = {}
        self.dead = dead
        self.run = Run(ranks, 0.0, [0] * ranks, [0] * ranks)
        self._server_free = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, when: float, act: Callable[[], None]) -> None:
        """Schedules something."""
        heapq.heappush(self._events, (when, next(self._order), act))

    def start(self, number: int, rank: Rank, when: float) -> None:
        """A rank comes."""
        self.at(when, lambda: self._step(number, rank, None))

    def finish(self) -> Run:
        """Runs until nothing is left to happen."""
        while self._events:
            self.now, _, act = heapq.heappop(self._events)
            act()
        return self.run

    def _step(self, number: int, rank: Rank, answer: Any) -> None:
        try:
            wish = rank.send(answer)
        except StopIteration:
            self.run.seconds = max(self.run.seconds, self.now)
            return
        if not isinstance(wish, Ask):
            self.at(self.now + wish, lambda: self._step(number, rank, None))
            return
        self.run.asked[number] += 1
        self.at(self.now + self.costs.network, lambda: self._serve(number, rank, wish))

    def _serve(self, number: int, rank: Rank, ask: Ask) -> None:
        """The request has come to the server: it waits for its turn."""
        costs = self.costs
        spent = costs.request + costs.key * (ask.keys - 1) + costs.byte * ask.bytes
        self._server_free = max(self._server_free, self.now) + spent

        def done() -> None:
            answer = ask.act(self.store)
            self.at(self.now + costs.network, lambda: self._step(number, rank, answer))

        self.at(self._server_free, done)
