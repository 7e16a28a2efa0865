"""Who is in the group: the launcher, which sees processes end, and the workers agree through a Store.

Time is divided into generations, one process group each. At the end of a generation every worker says
that it is ready for the next; when all who still live have said so, the launcher writes who is in it.
A worker that was started meanwhile says so too, and is taken in.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

PATIENCE = timedelta(seconds=60)  # for a worker of an earlier generation that is slow to come back


def connect(port: int) -> dist.Store:
    """A worker's way to the launcher's Store."""
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)


def numbers(text: bytes) -> list[int]:
    return [int(word) for word in text.split()]


# What workers say and ask.


def answer(store: dist.Store, me: int) -> tuple[int, list[int]]:
    """Takes part in the next roll call: the new generation's number, and who is in it, by rank."""
    while True:
        generation = int(store.get("generation")) + 1
        store.set(f"{generation}/ready/{me}", "")
        members = numbers(store.get(f"{generation}/members"))
        if not members or me in members:
            return generation, members  # nobody: the end


def next_death(store: dist.Store, generation: int, number: int) -> int:
    """The worker that was the so manieth to end in this generation; waits for the launcher's word."""
    key = f"{generation}/death/{number}"
    store.wait([key], timedelta(seconds=5))
    return int(store.get(key))


# What the launcher says and asks.


class RollCall:
    """The launcher's side."""

    def __init__(self) -> None:
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.generation, self.members, self.dead = 0, list[int](), list[int]()
        self.store.set("generation", "0")

    def is_ready(self, worker: int) -> bool:
        return self.store.check([f"{self.generation + 1}/ready/{worker}"])

    def open_next(self, living: list[int], at_least: int, end: bool) -> bool:
        """Opens the next generation if all who are awaited are ready; says whether it did.

        Those of this generation who live are awaited; of the others, those who are there are in.
        """
        ready = [worker for worker in living if self.is_ready(worker)]
        awaited = set(self.members) & set(living) - set(self.dead)
        if len(ready) < at_least or not awaited <= set(ready):
            return False
        self.members, self.dead = [] if end else ready, []
        self.generation += 1
        self.store.set("generation", str(self.generation))
        self.store.set(f"{self.generation}/members", " ".join(map(str, self.members)))
        return True

    def say_death(self, worker: int) -> None:
        """Tells the others who has ended: all hear of the deaths of a generation in one order."""
        if worker in self.members and worker not in self.dead:
            self.store.set(f"{self.generation}/death/{len(self.dead)}", str(worker))
            self.dead.append(worker)
            # It may have been ready for the next generation; who is started in its place is not yet.
            self.store.delete_key(f"{self.generation + 1}/ready/{worker}")
