"""One rank of a random case: its groups, its threads, and what each operation did there."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from case_kinds import Plan
from collective_steps import prepare
from drawn_step import Place, Prepared, Step
from namespaces import address
from waiting import takes
from watched_memory import seed_of

LANES, MOST_RANKS = 4, 8
MESSAGE_KINDS = ("message", "from_anybody", "batch")


@dataclass(frozen=True)
class Outcome:
    """What one operation did on one rank."""

    lane: int
    index: int
    status: str  # "right", "wrong", "raised"
    seconds: float
    text: str
    why: str = ""
    group: str = ""


class Progress:
    """How far each rank is, in memory that all of them see."""

    def __init__(self, file: Path, create: bool = False) -> None:
        if create:
            file.write_bytes(bytes(8 * LANES * MOST_RANKS))
        with file.open("r+b") as opened:
            self._map = memoryview(mmap.mmap(opened.fileno(), 0)).cast("Q")

    def set(self, lane: int, rank: int, number: int) -> None:
        self._map[lane * MOST_RANKS + rank] = number

    def get(self, lane: int, rank: int) -> int:
        return self._map[lane * MOST_RANKS + rank]


class State:
    """One rank's."""

    rank: int
    progress: Progress
    groups: dict[str, tuple[Any, list[int]]]
    held: list[tuple[Prepared, bool]] = []
    backends: dict[str, Any] = {}


def enter_host(name: str) -> None:
    """Moves this process to a network namespace: for Weft, to another host."""
    if ctypes.CDLL(None, use_errno=True).setns(os.open(f"/run/netns/{name}", os.O_RDONLY), 0) != 0:
        raise OSError(ctypes.get_errno(), f"setns {name}")


def meet(rank: int, size: int, folder: str, host: str, backend: str = "weft") -> str:
    import torch
    import torch.distributed as dist

    if host:
        enter_host(host)
        # A file tells no route, so nothing else would say which of the host's interfaces it is.
        os.environ["WEFT_SOCKET_IFNAME"] = address(int(host.rpartition("p")[2]))
    if backend == "weft":
        import weft  # noqa: F401

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    State.rank = rank
    State.progress = Progress(Path(folder) / "progress")
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=30),
    )
    everybody = list(range(size))
    State.groups = {"world": (dist.group.WORLD, everybody)}
    members = {"lane0": everybody, "lane1": everybody}
    if size > 2:
        members |= {"first": [0, 1], "last": everybody[1:], "ends": [0, size - 1]}
    for name, ranks in members.items():
        State.groups[name] = (dist.new_group(ranks, timeout=timedelta(seconds=30)), ranks)
    return getattr(dist.group.WORLD._get_backend(torch.device("cpu")), "path", backend)


class Lane:
    """The operations of one thread."""

    def __init__(self, number: int, case: int, plan: Plan, seed: int, steady: bool) -> None:
        self.number, self.plan = number, plan
        self.base = case << 12
        self.steady = steady
        self.lags = False  # ranks come late to some operations
        self.local = random.Random(seed_of(seed, "lane", number, State.rank))
        self.outcomes: list[Outcome] = []
        self.flying: list[tuple[int, Prepared, Any, float]] = []
        self.prepared: dict[int, Prepared] = {}

    def place(self, index: int) -> Place | None:
        group, ranks = State.groups[self.plan[index][0]]
        if State.rank not in ranks:
            return None
        tag = 10 + (self.base + self.number * 1000 + index) % (1 << 20)
        other = State.groups["world"][0]
        return Place(group, ranks, ranks.index(State.rank), other, tag, self.steady)

    def prepare_all(self) -> None:
        for index, (_, step) in enumerate(self.plan):
            if (place := self.place(index)) is not None:
                self.prepared[index] = prepare(step, place)

    def run(self) -> None:
        for index, (_, step) in enumerate(self.plan):
            State.progress.set(self.number, State.rank, self.base + index + 1)
            if index not in self.prepared:
                if (place := self.place(index)) is None:
                    continue
                self.prepared[index] = prepare(step, place)
            if self.lags:
                takes(self.local.choice((0.0, 0.0, 0.0, 1e-3, 5e-3, 2e-2)))
            self.begin(index, self.prepared[index])
            while self.flying and self.local.random() < 0.4:
                self.settle(self.flying.pop(self.local.randrange(len(self.flying))))
        self.local.shuffle(self.flying)
        while self.flying:
            self.settle(self.flying.pop())
        State.progress.set(self.number, State.rank, self.base + len(self.plan) + 1)

    def begin(self, index: int, prepared: Prepared) -> None:
        started = time.monotonic()
        try:
            handle = prepared.start()
        except Exception as error:
            # Parts of an operation on several messages may be under way: they may still arrive.
            self.raised(index, prepared, error, started, sure=self.plan[index][1].kind != "batch")
            return
        if handle is None:
            self.succeeded(index, prepared, handle, started)
        else:
            self.flying.append((index, prepared, handle, started))

    def settle(self, flight: tuple[int, Prepared, Any, float]) -> None:
        index, prepared, handle, started = flight
        failure = None
        for work in handle if isinstance(handle, list) else [handle]:
            try:
                wait_for(work, self.plan[index][1], patient=not self.lags)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            self.raised(index, prepared, failure, started)
        else:
            self.succeeded(index, prepared, handle, started)

    def succeeded(self, index: int, prepared: Prepared, handle: Any, started: float) -> None:
        ended = time.monotonic()
        if self.local.random() < 0.5:
            for memory in prepared.inputs():
                memory.poison()
        why = None
        if prepared.meets:
            _, ranks = State.groups[self.plan[index][0]]
            here = self.base + index + 1
            late = [rank for rank in ranks if State.progress.get(self.number, rank) < here]
            why = f"left the barrier before ranks {late} came" if late else None
        why = why or prepared.wrong(handle)
        self.record(index, prepared, "wrong" if why else "right", ended - started, why or "")
        self.let_go(prepared, True)

    def raised(
        self, index: int, prepared: Prepared, error: Exception, started: float, sure: bool = True
    ) -> None:
        ended = time.monotonic()
        self.let_go(prepared, sure)
        said = f"{type(error).__name__}: {error}"
        self.record(index, prepared, "raised", ended - started, said)

    def let_go(self, prepared: Prepared, sure: bool) -> None:
        for memory in prepared.memories:
            memory.poison()
        State.held.append((prepared, sure))

    def record(self, index: int, prepared: Prepared, status: str, seconds: float, why: str) -> None:
        name = self.plan[index][0]
        self.outcomes.append(Outcome(self.number, index, status, seconds, prepared.text, why, name))


def wait_for(work: Any, step: Step, patient: bool) -> None:
    if step.style == "future" and hasattr(work, "get_future"):
        work.get_future().wait()
    elif step.style == "impatient" and step.kind in MESSAGE_KINDS:
        # A message is given up then; one that may not be has all the time it needs.
        work.wait(timedelta(seconds=60) if patient else timedelta(milliseconds=2))
    elif step.style == "impatient" and hasattr(work, "get_future"):
        try:
            work.wait(timedelta(milliseconds=1))
        except RuntimeError as error:
            if "goes on until" not in str(error):
                raise
            work.wait()
    else:
        work.wait()
