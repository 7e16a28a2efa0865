"""Random sequences of a process group's operations, run on real ranks, with what goes wrong in them.

The rule under test: an operation that says it succeeded has the right results, has changed nothing
else, and is through with its tensors; one that cannot raises within its time. What each rank saw comes
back as Outcomes, which judge() in the test's process looks at.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import random
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from collective_steps import (
    AT_ONCE,
    CENTURIES,
    KINDS,
    MOVEMENTS,
    REDUCTIONS,
    Place,
    Prepared,
    Step,
    prepare,
)
from watched_memory import seed_of
from workers import WorkerDied, Workers

LANES, MOST_RANKS = 4, 8
PATHS = {
    "shared memory": {},
    "messages": {"WEFT_SHARED_MEMORY": "0"},
    "hosts": {"WEFT_SOCKET_IFNAME": "uplink"},
}


@dataclass(frozen=True)
class Outcome:
    """What one operation did on one rank."""

    lane: int
    index: int
    status: str  # "right", "wrong", "raised"
    seconds: float
    text: str
    why: str = ""
    may_refuse: bool = False
    group: str = ""


@dataclass(frozen=True)
class Kind:
    """A kind of case: how its group is made, and how long its operations may take."""

    share: int  # how many of a hundred cases
    timeout: float = 0.0  # of a group of its own; 0: on groups that stay
    limit: float = 60.0  # seconds by which an operation has ended
    fails: bool = True  # operations may raise
    ends_ranks: bool = False


CASES = {
    "plain": Kind(46, fails=False),
    "threads": Kind(12, fails=False),
    "failed batch": Kind(6, fails=False),
    "centuries": Kind(2, timeout=CENTURIES.total_seconds(), fails=False),
    "alias": Kind(4, timeout=1.0, limit=8.0),
    "disagreement": Kind(6, timeout=2.0, limit=10.0),
    "abort": Kind(11, timeout=20.0, limit=6.0),
    "stop": Kind(6, timeout=0.7, limit=8.0),
    "destroy": Kind(4, timeout=2.0, limit=15.0),
    "kill": Kind(2, timeout=20.0, limit=6.0, ends_ranks=True),
    "fork": Kind(1, fails=False),
}


def kind_of(seed: int) -> str:
    names, shares = list(CASES), [kind.share for kind in CASES.values()]
    return random.Random(seed_of("kind", seed)).choices(names, shares)[0]


# --- the ranks


class CaseRanks(Workers):
    """Worker processes in one group and several subgroups, for many cases."""

    def __init__(self, size: int, path: str, hosts: Sequence[str] = ()) -> None:
        super().__init__(size, PATHS[path])
        self.path = path
        self.progress = Progress(self.folder / "progress", create=True)
        try:
            for rank, worker in enumerate(self):
                host = hosts[rank * len(hosts) // size] if hosts else ""
                worker.start(meet, rank, size, str(self.folder), host)
            paths = {worker.result() for worker in self}
            assert len(paths) == 1, paths
            assert path in str(paths), paths
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise


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


# --- drawing cases; all ranks draw the same


Plan = list[tuple[str, Step]]  # names of groups, and what they do


def draw_plans(seed: int, kind: str, groups: Mapping[str, Sequence[int]]) -> list[Plan]:
    """The lanes of a case: one per thread."""
    rng = random.Random(seed)
    if kind == "threads":
        return thread_plans(rng, seed)
    if CASES[kind].timeout:
        count = rng.randint(2, 5)
        return [[("own", fault_step(rng, seed, i, kind)) for i in range(count)]]
    names = [name for name, ranks in groups.items() if len(ranks) > 1 and name != "own"]
    if kind == "failed batch":
        names = ["world"]
    plan = []
    for index in range(rng.randint(2, 9)):
        name = "world" if rng.random() < 0.5 else rng.choice(names)
        plan.append((name, any_step(rng, seed, index, list(KINDS))))
    return [plan]


def any_step(rng: random.Random, seed: int, index: int, kinds: Sequence[str]) -> Step:
    style = rng.choice(("sync", "sync", "wait", "wait", "future", "impatient"))
    return Step(rng.choice(kinds), seed_of(seed, index), style)


def fault_step(rng: random.Random, seed: int, index: int, kind: str) -> Step:
    """A long one, most of the time, of tensors that others use where they lie."""
    if kind == "disagreement":
        return any_step(rng, seed, index, list(KINDS))
    names = [f.__name__ for f in (*REDUCTIONS, *REDUCTIONS, *MOVEMENTS, *AT_ONCE[:3])]
    names += ["message", "batch", "barrier"] if kind != "stop" else []
    sizes = (1 << 16, 1 << 20, 1 << 21, 1 << 22, 1 << 22, 1 << 23, 1 << 24)
    style = rng.choice(("sync", "wait", "wait", "future"))
    heap = rng.choice((1.0, 1.0, 0.5, 0.0))
    return Step(rng.choice(names), seed_of(seed, index), style, rng.choice(sizes), heap)


def thread_plans(rng: random.Random, seed: int) -> list[Plan]:
    """Messages in one thread beside collectives of another on the same group, and a group alone."""
    messages = [
        ("lane0", any_step(rng, seed, i, ("batch", "batch", "message")))
        for i in range(rng.randint(3, 12))
    ]
    collectives = [f.__name__ for f in (*REDUCTIONS, *MOVEMENTS)]
    beside = [
        ("lane0", any_step(rng, seed, 100 + i, ("all_reduce", "barrier", *collectives)))
        for i in range(rng.randint(5, 20))
    ]
    alone = [("lane1", any_step(rng, seed, 200 + i, list(KINDS))) for i in range(rng.randint(2, 8))]
    return rng.choice(([messages, beside], [messages, beside, alone], [beside, alone]))


# --- what ranks run


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
        timeout=timedelta(seconds=60),
    )
    everybody = list(range(size))
    State.groups = {"world": (dist.group.WORLD, everybody)}
    members = {"lane0": everybody, "lane1": everybody}
    if size > 2:
        members |= {"first": [0, 1], "last": everybody[1:], "ends": [0, size - 1]}
    for name, ranks in members.items():
        State.groups[name] = (dist.new_group(ranks, timeout=timedelta(seconds=60)), ranks)
    return getattr(dist.group.WORLD._get_backend(torch.device("cpu")), "path", backend)


class Lane:
    """The operations of one thread."""

    def __init__(self, number: int, case: int, plan: Plan, seed: int, shares_tags: bool) -> None:
        self.number, self.plan = number, plan
        self.base = case << 12
        self.shares_tags = shares_tags
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
        return Place(group, ranks, ranks.index(State.rank), other, tag, self.shares_tags)

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
                wait_for(work, self.plan[index][1])
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
        self.outcomes.append(
            Outcome(
                self.number, index, status, seconds, prepared.text, why, prepared.may_refuse, name
            )
        )


def wait_for(work: Any, step: Step) -> None:
    message = step.kind in ("message", "from_anybody", "batch")
    if step.style == "future" and hasattr(work, "get_future"):
        work.get_future().wait()
    elif step.style == "impatient" and not message and hasattr(work, "get_future"):
        try:
            work.wait(timedelta(milliseconds=1))
        except RuntimeError as error:
            if "goes on until" not in str(error):
                raise
            work.wait()
    else:
        work.wait()


def run_case(case: int, seed: int, kind: str, victim: int, at: int, delay: float) -> list[Outcome]:
    """One case on this rank. late() must follow, on all ranks, once all have returned."""
    import torch.distributed as dist

    facts = CASES[kind]
    size = len(State.groups["world"][1])
    if facts.timeout:
        group = dist.new_group(timeout=timedelta(seconds=facts.timeout))
        State.groups["own"] = (group, list(range(size)))
    if kind == "fork":
        return in_a_child(seed)
    members = {name: ranks for name, (_, ranks) in State.groups.items()}
    plans = draw_plans(seed, kind, members)
    shares_tags = kind == "plain"
    lanes = [Lane(n, case, plan, seed, shares_tags) for n, plan in enumerate(plans)]
    if facts.timeout:
        for lane in lanes:
            lane.prepare_all()
        dist.barrier()  # of the world
    first: list[Outcome] = []
    if kind in SPECIAL:
        first = SPECIAL[kind](case, seed, victim)
    trigger = None
    if kind == "abort" and State.rank == victim:
        backend = State.groups["own"][0]._get_backend(torch_cpu())
        trigger = Trigger(lanes[0].base + at + 1, delay, backend.abort)
    if kind == "destroy" and victim in (State.rank, size):
        group = State.groups["own"][0]
        trigger = Trigger(lanes[0].base + at + 1, delay, lambda: dist.destroy_process_group(group))
    threads = [threading.Thread(target=lane.run) for lane in lanes[1:]]
    for thread in threads:
        thread.start()
    lanes[0].run()
    for thread in threads:
        thread.join()
    if trigger is not None:
        trigger.thread.join()
        first += trigger.outcomes
    return first + [outcome for lane in lanes for outcome in lane.outcomes]


class Trigger:
    """Does something when this rank has come to a step, and some time has passed."""

    def __init__(self, number: int, delay: float, action: Callable[[], Any]) -> None:
        self.number, self.delay, self.action = number, delay, action
        self.outcomes: list[Outcome] = []
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while State.progress.get(0, State.rank) < self.number:
            time.sleep(2e-5)
        time.sleep(self.delay)
        started = time.monotonic()
        try:
            self.action()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            self.outcomes.append(Outcome(0, -1, "wrong", 0, "abort or destroy", why))
        else:
            took = time.monotonic() - started
            self.outcomes.append(Outcome(0, -1, "right", took, "abort or destroy"))


def late(end: bool = True) -> list[str]:
    """What happened to tensors after their operations had ended; ends the case's own group."""
    import torch.distributed as dist

    found = []
    for prepared, sure in State.held:
        for memory in prepared.memories if sure else ():
            if why := memory.touched():
                found.append(f"{prepared.text}: {why}")
    State.held.clear()
    group, _ = State.groups.pop("own", (None, None))
    if group is not None and end:
        with contextlib.suppress(ValueError, AssertionError):  # the case did it
            dist.destroy_process_group(group)
    gc.collect()
    return found


def torch_cpu() -> Any:
    import torch

    return torch.device("cpu")


# --- kinds that do something of their own first


def attempt(text: str, group: str, must_fail: bool, start: Callable[[], str | None]) -> Outcome:
    started = time.monotonic()
    try:
        why = start()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        took = time.monotonic() - started
        return Outcome(0, -1, "right" if must_fail else "raised", took, text, said, group=group)
    took = time.monotonic() - started
    if must_fail:
        return Outcome(0, -1, "wrong", took, text, why or "succeeded", group=group)
    return Outcome(0, -1, "wrong" if why else "right", took, text, why or "", group=group)


def failed_batch(case: int, seed: int, victim: int) -> list[Outcome]:
    """An exception in the middle of a batch, on one rank."""
    import torch
    import torch.distributed as dist

    if State.rank != victim:
        return []
    peer = (victim + 1) % dist.get_world_size()
    sparse = torch.eye(3).to_sparse()
    ops = [dist.P2POp(dist.isend, sparse, peer, tag=9)]
    if seed % 2:
        ops.insert(0, dist.P2POp(dist.isend, torch.ones(4), peer, tag=(case % 1000) + (1 << 21)))
    return [
        attempt(
            "a batch with an isend of a sparse tensor",
            "world",
            True,
            lambda: dist.batch_isend_irecv(ops) and None,
        )
    ]


def disagreement(case: int, seed: int, victim: int) -> list[Outcome]:
    """One rank asks for something else than the others: it fails on all."""
    import torch
    import torch.distributed as dist

    rng = random.Random(seed)
    group, size = State.groups["own"][0], dist.get_world_size()
    numel = rng.choice((6, 1000, 30_000, 400_000)) * size
    way = rng.choice(("size", "dtype", "reduction", "kind", "parts"))
    odd = State.rank == victim
    tensor = torch.full((numel,), State.rank + 1.0)

    def start() -> None:
        if way == "size":
            dist.all_reduce(torch.ones(numel + odd), group=group)
        elif way == "dtype":
            dist.all_reduce(tensor.int() if odd else tensor, group=group)
        elif way == "reduction":
            op = dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM
            dist.all_reduce(tensor, op, group=group)
        elif way == "parts":
            sizes = [4] * size
            sizes[(victim + 1) % size] += odd
            dist.all_gather([torch.empty(n) for n in sizes], torch.empty(sizes[State.rank]), group)
        elif odd:
            dist.reduce_scatter_tensor(torch.empty(numel // size), tensor, group=group)
        else:
            dist.all_reduce(tensor, group=group)

    return [attempt(f"{way} of {numel} differs on rank {victim}", "own", True, start)]


def aliases(case: int, seed: int, victim: int) -> list[Outcome]:
    """Inputs and outputs share memory in ways that only some ranks may see: right, or refused."""
    import torch
    import torch.distributed as dist

    rng = random.Random(seed)
    group, size, rank = State.groups["own"][0], dist.get_world_size(), State.rank
    numel = rng.choice((4, 3000, 300_000))
    backend = group._get_backend(torch.device("cpu"))
    heap = rng.random() < 0.5 and backend.supports_tensor_alloc(torch.device("cpu"))

    def made() -> torch.Tensor:
        if heap:
            return backend.allocate_tensor(
                numel * size, dtype=torch.float32, device=torch.device("cpu")
            )
        return torch.empty(numel * size)

    whole = made().copy_(torch.arange(numel * size) % 9973 + 10_000 * (rank + 1))
    parts, other = list(whole.chunk(size)), (rank + 1) % size
    way = rng.choice(("scatter", "gather", "all_to_all", "all_gather", "reduce_scatter"))

    def of(of_rank: int, part: int) -> torch.Tensor:
        return torch.arange(part * numel, (part + 1) * numel) % 9973 + 10_000.0 * (of_rank + 1)

    def start() -> str | None:
        root, wanted = victim, [of(rank, p) for p in range(size)]
        if way == "scatter":
            into = parts[other] if rank == root else torch.empty(numel)
            dist.scatter(into, parts if rank == root else None, root, group=group)
            wanted[other] = of(root, rank)
            if rank != root:
                return (
                    None if torch.equal(into, of(root, rank)) else f"rank {rank} got another part"
                )
        elif way == "gather":
            dist.gather(parts[other], parts if rank == root else None, root, group=group)
            if rank == root:
                wanted = [of(r, (r + 1) % size) for r in range(size)]
        elif way == "all_gather":
            dist.all_gather(parts, parts[other], group=group)
            wanted = [of(r, (r + 1) % size) for r in range(size)]
        elif way == "all_to_all":
            dist.all_to_all(parts[1:] + parts[:1], parts, group=group)
            wanted = [of((p - 1) % size, rank) for p in range(size)]
        else:
            dist.reduce_scatter(parts[other], parts, group=group)
            wanted[other] = sum(of(r, rank) for r in range(size))
        got = [bool(torch.equal(p, w)) for p, w in zip(parts, wanted, strict=True)]
        return None if all(got) else f"parts {[i for i, ok in enumerate(got) if not ok]} are wrong"

    text = f"{way} of [{numel}]{' (heap)' if heap else ''}, output in another's input"
    return [attempt(text, "own", False, start)]


SPECIAL = {"failed batch": failed_batch, "disagreement": disagreement, "alias": aliases}


def in_a_child(seed: int) -> list[Outcome]:
    """A forked child calls a collective of its parent's group: an error at once, and a quick end."""
    import torch
    import torch.distributed as dist

    rng = random.Random(seed)
    way = rng.choice(("all_reduce", "async", "send", "barrier", "new", "exit", "destroy"))
    numel = rng.choice((4, 100_000))
    readable, writable = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        said = "succeeded"
        try:
            if way == "all_reduce":
                dist.all_reduce(torch.ones(numel))
            elif way == "async":
                dist.all_reduce(torch.ones(numel), async_op=True).wait()
            elif way == "barrier":
                dist.barrier()
            elif way == "send":
                dist.send(torch.ones(numel), (State.rank + 1) % dist.get_world_size())
            elif way == "new":
                dist.new_group([State.rank])
        except Exception as error:
            said = f"raised {type(error).__name__}: {error}"
        os.write(writable, said.encode()[:4000])
        if way == "destroy":
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
        ctypes.pythonapi.Py_Exit(0)
    os.close(writable)
    said, status = "", None
    limit = time.monotonic() + 5
    if select.select([readable], [], [], 5)[0]:
        said = os.read(readable, 4000).decode()
    while status is None and time.monotonic() < limit:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else time.sleep(0.01)
    took = time.monotonic() - started
    if status is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    os.close(readable)
    wrong = ""
    if way in ("all_reduce", "async", "send", "barrier") and not said.startswith("raised"):
        wrong = f"the child's call {said or 'gave nothing'}"
    elif status != 0:
        wrong = f"the child {'did not end in 5 s' if status is None else f'ended with {status}'}"
    text = f"a forked child: {way} [{numel}]"
    found = [Outcome(0, 0, "wrong" if wrong else "right", took, text, wrong or said, group="world")]

    def again() -> str | None:
        tensor = torch.ones(numel)
        dist.all_reduce(tensor)
        return None if bool((tensor == dist.get_world_size()).all()) else "the sum is wrong"

    return [*found, attempt("an all_reduce after the fork", "world", False, again)]


# --- what the test's process does


class Runner:
    """Runs cases on sets of ranks that it keeps while they are well."""

    PER_SET = 250  # cases; then new processes

    def __init__(self, path: str, hosts: Sequence[str] = ()) -> None:
        self.path, self.hosts = path, hosts
        self.sets: dict[int, CaseRanks] = {}
        self.used: dict[int, int] = {}
        self.number = 0
        self.counts: dict[str, int] = {}

    def close(self) -> None:
        for size in list(self.sets):
            self.drop(size)

    def drop(self, size: int) -> None:
        if (ranks := self.sets.pop(size, None)) is not None:
            ranks.close()

    def ranks(self, size: int) -> CaseRanks:
        if self.used.get(size, 0) >= self.PER_SET:
            self.drop(size)
        if size not in self.sets:
            self.sets[size] = CaseRanks(size, self.path, self.hosts)
            self.used[size] = 0
        self.used[size] += 1
        return self.sets[size]

    def run(self, seed: int, kind: str | None = None) -> list[str]:
        """One case; what was wrong in it."""
        kind = kind or kind_of(seed)
        rng = random.Random(seed_of("parent", seed))
        size = 4 if self.hosts else rng.choice((2, 2, 3, 3, 4))
        victim = rng.randrange(size + 1) if kind == "destroy" else rng.randrange(size)
        at, delay = rng.choice((0, 0, 1, 2)), rng.choice((0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2))
        delay *= rng.random() * 2
        self.number += 1
        self.counts[kind] = self.counts.get(kind, 0) + 1
        head = f"seed {seed}: {kind}, {size} ranks, {self.path}, victim {victim}"
        ranks = self.ranks(size)
        try:
            for worker in ranks:
                worker.start(run_case, self.number, seed, kind, victim, at, delay)
            found = self.finish(ranks, kind, victim, at, delay)
        except Exception as error:
            found = [f"{type(error).__name__}: {error}"]
        if found or CASES[kind].ends_ranks:
            self.drop(size)
        return [f"{head}: {text}" for text in found]

    def finish(self, ranks: CaseRanks, kind: str, victim: int, at: int, delay: float) -> list[str]:
        facts = CASES[kind]
        away = victim if kind in ("stop", "kill") else None
        if away is not None:
            # A plan may have fewer steps: then at its end.
            self.await_step(ranks, away, (self.number << 12) + at + 1)
            time.sleep(delay)
            if kind == "kill":
                ranks[away].kill()
            else:
                ranks[away].signal(signal.SIGSTOP)
        seen: dict[int, list[Outcome]] = {}
        wait = 120.0 if not facts.timeout else min(facts.limit, 60.0) * 6 + 10
        for rank, worker in enumerate(ranks):
            if rank != away:
                seen[rank] = worker.result(wait)
        if kind == "stop":
            ranks[victim].signal(signal.SIGCONT)
            seen[victim] = ranks[victim].result(wait)
        found = judge(seen, facts, away)
        alive = [worker for rank, worker in enumerate(ranks) if kind != "kill" or rank != victim]
        for worker in alive:
            worker.start(late, kind != "kill")
        for worker in alive:
            found += worker.result(60.0)
        return found

    def await_step(self, ranks: CaseRanks, rank: int, number: int) -> None:
        limit = time.monotonic() + 60
        while ranks.progress.get(0, rank) < number:
            if ranks[rank].exit_code is not None:
                raise WorkerDied(f"rank {rank} ended: {ranks[rank].output()}")
            if ranks[rank]._pipe.poll():
                return
            assert time.monotonic() < limit, f"rank {rank} did not come to its step"
            time.sleep(2e-5)


def judge(seen: dict[int, list[Outcome]], facts: Kind, away: int | None) -> list[str]:
    """What is wrong with what the ranks saw."""
    found = []
    raised: dict[tuple[int, int], set[int]] = {}
    for rank, outcomes in seen.items():
        for outcome in outcomes:
            if outcome.status == "raised":
                raised.setdefault((outcome.lane, outcome.index), set()).add(rank)
    for rank, outcomes in seen.items():
        for o in outcomes:
            head = f"rank {rank}, operation {o.index} of lane {o.lane} on {o.group}: {o.text}"
            if o.status == "wrong":
                found.append(f"{head}: OK, but {o.why}")
            if o.status == "raised" and not facts.fails and not o.may_refuse:
                found.append(f"{head}: raised {o.why[:600]}")
            if (
                o.may_refuse
                and o.status == "right"
                and raised.get((o.lane, o.index))
                and not facts.fails
            ):
                found.append(f"{head}: right here, refused on {raised[o.lane, o.index]}")
            if o.seconds > facts.limit and rank != away:
                found.append(f"{head}: took {o.seconds:.1f} s, {o.status} {o.why[:300]}")
    return found
