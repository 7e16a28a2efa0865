"""One random operation of a process group: drawn from its seed alone, with what it must do.

Every rank draws the same step, and so knows what all of them give and must get.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from watched_memory import Memory, carve, random_bits, seed_of, stretch

REDUCED = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
MOVED = REDUCED + " uint16 uint32 uint64 float8_e4m3fn float8_e5m2"
CPU = torch.device("cpu")
# Where the algorithms change: small slots, pieces of heaps and buffers, packs, trees, shares.
EDGES = [1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22]
CENTURIES = timedelta(days=300 * 365)  # more than a clock of 64 bits counts in nanoseconds


@dataclass(frozen=True)
class Step:
    """One operation that all ranks of a group call."""

    kind: str
    seed: int
    style: str  # "sync", "wait", "future", "impatient"
    bytes: int = -1  # about so many; -1: drawn
    heap: float = -1.0  # how often tensors are the group's own; -1: drawn

    @property
    def asynchronous(self) -> bool:
        return self.style != "sync"


@dataclass
class Place:
    """One rank of a group."""

    group: Any
    ranks: list[int]  # of the group, as the default group numbers them
    rank: int  # in the group
    others_heap: Any = None  # a group whose tensors are used beside its own
    tag: int = 0  # for messages of this step alone
    steady: bool = True  # one thread, and nothing fails: tags may repeat, times may be long

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def tags(self) -> tuple[int, ...]:
        return (0, 3, self.tag) if self.steady else (self.tag,)


@dataclass
class Prepared:
    """A step's call on one rank, and the model's answer."""

    text: str
    start: Callable[[], Any] = lambda: None  # gives a Work, several, or None
    memories: list[Memory] = field(default_factory=list)
    results: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)  # by memory, part
    rounding: bool = False
    check: Callable[[Any], str | None] = lambda _: None  # what more must hold
    meets: bool = False  # after it, all have come here

    def inputs(self) -> list[Memory]:
        return [m for i, m in enumerate(self.memories) if not self.results.get(i)]

    def wrong(self, handle: Any) -> str | None:
        for number, memory in enumerate(self.memories):
            if memory.poisoned:
                continue
            if found := memory.wrong(self.results.get(number, {}), self.rounding):
                return found
        return self.check(handle)


class Draw:
    """The choices of a step: those of all ranks from `common`, this rank's own from `local`."""

    def __init__(self, step: Step, place: Place) -> None:
        self.step, self.place = step, place
        self.common = random.Random(step.seed)
        self.local = random.Random(seed_of(step.seed, place.rank))
        self.heap = self.common.choice((0.0, 0.0, 0.5, 1.0)) if step.heap < 0 else step.heap
        self.prepared = Prepared(step.kind)

    def dtype(self, names: str) -> torch.dtype:
        self.type_name = self.common.choice(names.split())
        return getattr(torch, self.type_name)

    def numel(self, dtype: torch.dtype, parts: int = 1) -> int:
        item = torch.empty(0, dtype=dtype).element_size() * parts
        bytes_ = self.step.bytes
        if bytes_ < 0:
            way = self.common.random()
            if way < 0.25:
                return self.common.choice((0, 1, 2, 3, 17, 100))
            if way < 0.75:
                bytes_ = self.common.choice(EDGES[: self.common.choice((4, 8, 10))])
            else:
                bytes_ = int(2 ** self.common.uniform(5, 20))
        return max(0, bytes_ // item + self.common.choice((-1, 0, 0, 1, 5)))

    def sizes(self, numel: int, count: int) -> list[int]:
        """One for each of `count`, equal or not."""
        if self.common.random() < 0.5:
            return [numel] * count
        return [self.common.choice((numel, self.common.randint(0, numel), 0)) for _ in range(count)]

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        if self.local.random() < self.heap:
            group = self.place.group
            if self.place.others_heap is not None and self.local.random() < 0.1:
                group = self.place.others_heap
            backend = group._get_backend(CPU)
            if backend.supports_tensor_alloc(CPU):
                return backend.allocate_tensor(numel, dtype=dtype, device=CPU)
        return torch.empty(numel, dtype=dtype)

    def memory(self, sizes: Sequence[int], dtype: torch.dtype, contiguous: bool = False) -> Memory:
        made = carve(self.local, self.allocate, sizes, dtype, contiguous)
        self.prepared.memories.append(made)
        self.prepared.results[len(self.prepared.memories) - 1] = {}
        return made

    def result(self, memory: Memory, part: int, values: torch.Tensor) -> None:
        index = next(i for i, m in enumerate(self.prepared.memories) if m is memory)
        self.prepared.results[index][part] = values

    def bits(self, rank: int, numel: int, dtype: torch.dtype, part: int = 0) -> torch.Tensor:
        return stretch(random_bits(seed_of(self.step.seed, rank, part), numel, dtype), numel)

    def timeout(self) -> timedelta | None:
        if not self.place.steady:  # the group's, which is short where something fails
            return None
        return self.common.choice((None, None, None, timedelta(seconds=100), CENTURIES))

    def done(self, text: str, start: Callable[[], Any]) -> Prepared:
        for memory in self.prepared.memories:
            memory.snapshot()
        layouts = ",".join(memory.layout for memory in self.prepared.memories)
        self.prepared.text = f"{self.step.kind} {text} {self.step.style} ({layouts})"
        self.prepared.start = start
        return self.prepared


def low_level(draw: Draw, options: Any, **fields: Any) -> Any:
    """Options of a call of the group itself."""
    for name, value in fields.items():
        setattr(options, name, value)
    options.asyncOp = draw.step.asynchronous
    if (limit := draw.timeout()) is not None:
        options.timeout = limit
    return options


def alias_offset(draw: Draw, numel: int) -> tuple[str, int]:
    """Where in a tensor of all ranks' shares the one share lies: as usual, or across two."""
    way = draw.common.choice(("", "", "in place", "overlapping"))
    if way == "overlapping" and numel > 1:
        index = draw.common.randrange(max(1, draw.place.size - 1))
        return way, index * numel + draw.common.randint(1, numel - 1)
    return ("", -1) if way != "in place" else (way, draw.place.rank * numel)


def coalesced(draw: Draw, record: Callable[[], None]) -> Callable[[], Any]:
    """What runs `record` in a coalescing manager's block, in some beside another thread's all_reduce."""
    group, asynchronous = draw.place.group, draw.step.asynchronous
    beside, device = draw.common.random() < 0.3, draw.local.choice((None, CPU))
    tensor = torch.ones(7)

    def start() -> Any:
        with dist.distributed_c10d._coalescing_manager(group, device, asynchronous) as manager:
            record()
            if beside:
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(dist.all_reduce, tensor, group=group).result()
        return manager if asynchronous else None

    def check(_: Any) -> str | None:
        right = not beside or bool(tensor.eq(draw.place.size).all())
        return None if right else f"an all_reduce beside the block gave {tensor.tolist()}"

    draw.prepared.check = check
    return start
