"""The workers of a case: a caller, a victim and a witness of one RPC group.

The victim can be replaced by a new process of the same name, so that one fleet lives through many
faults.
"""

from __future__ import annotations

import members
from case_processes import Processes
from ledger import Ledger
from paths import OF_WORKERS
from workers import Worker

JOINING = 40.0  # seconds


class Fleet(Processes):
    """`path`: one of paths.OF_WORKERS."""

    def __init__(self, path: str, size: int = 3) -> None:
        super().__init__(path, OF_WORKERS[path], size)
        self.ledgers = 0
        self.warm: set[str] = set()  # workloads that have run here before
        with self.closed_on_failure():
            for rank in range(size):
                self._enter(rank)
            for member in self.members:
                member.result(JOINING)

    def _enter(self, rank: int) -> None:
        self.members[rank].start(members.join, rank, self.size, self.port, self.network_port)

    @property
    def caller(self) -> Worker:
        return self.members[0]

    @property
    def victim(self) -> Worker:
        return self.members[1]

    @property
    def witness(self) -> Worker:
        return self.members[2]

    def replace_victim(self) -> None:
        """A new process under the victim's name; it has joined when this returns."""
        self.remove(self.victim)
        self.members[1] = self.add()
        self._enter(1)
        self.victim.result(JOINING)

    def try_to_join(self) -> tuple[str, float]:
        late = self.add()
        said = late.call(members.try_to_join, 1, self.size, self.port)
        self.remove(late)
        return said

    def new_ledger(self) -> str:
        """A file for the next case; a late call of the last one may still write into that one's."""
        self.ledgers += 1
        (self.folder / f"ledger{self.ledgers - 2}").unlink(missing_ok=True)
        path = str(self.folder / f"ledger{self.ledgers}")
        Ledger(path, create=True)
        return path
