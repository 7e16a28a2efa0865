"""Every operation of a process group with random arguments, and what it must do by plain torch.

A step is drawn from its seed alone, so that every rank knows what all of them give and must get.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from watched_memory import (
    Memory,
    carve,
    random_bits,
    random_numbers,
    same_bytes,
    seed_of,
    stretch,
)

REDUCED = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
MOVED = REDUCED + " uint16 uint32 uint64 float8_e4m3fn float8_e5m2"
CPU = torch.device("cpu")
# Where the algorithms change: small slots, pieces of heaps and buffers, packs, trees, shares.
EDGES = [1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18, 1 << 19, 1 << 20, 1 << 21, 1 << 22]
WITHOUT = os.environ.get("WEFT_TEST_WITHOUT", "")  # XXX
CENTURIES = timedelta(days=300 * 365)  # more than a clock of 64 bits counts in nanoseconds


@dataclass(frozen=True)
class Step:
    """One operation that all ranks of a group call."""

    kind: str
    seed: int
    style: str  # "sync", "wait", "future", "impatient"
    bytes: int = -1  # about so many; -1: drawn
    heap: float = 0.4  # how often tensors are the group's own

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
    shares_tags: bool = True  # messages of several steps may have one tag

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def tags(self) -> tuple[int, ...]:
        return (0, 3, self.tag) if self.shares_tags else (self.tag,)


@dataclass
class Prepared:
    """A step's call on one rank, and the model's answer."""

    text: str
    start: Callable[[], Any] = lambda: None  # gives a Work, several, or None
    memories: list[Memory] = field(default_factory=list)
    results: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)  # by memory, part
    rounding: bool = False
    may_refuse: bool = False  # an alias that may be refused by an error on all ranks
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
        way = self.local.random()
        if way < self.step.heap:
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
        if "centuries" in WITHOUT:
            return None
        return self.common.choice((None, None, None, timedelta(seconds=100), CENTURIES))

    def done(self, text: str, start: Callable[[], Any]) -> Prepared:
        for memory in self.prepared.memories:
            memory.snapshot()
        layouts = ",".join(memory.layout for memory in self.prepared.memories)
        self.prepared.text = f"{self.step.kind} {text} {self.step.style} ({layouts})"
        self.prepared.start = start
        return self.prepared


# --- reductions


@dataclass
class Reduction:
    name: str
    dtype: torch.dtype
    factor: float = 1.0
    as_tensor: bool = False

    def op(self) -> Any:
        if self.name != "PREMUL_SUM":
            return getattr(dist.ReduceOp, self.name)
        return dist._make_nccl_premul_sum(
            torch.tensor([self.factor]) if self.as_tensor else self.factor
        )

    @property
    def rounding(self) -> bool:
        return self.name == "AVG" and (self.dtype.is_floating_point or self.dtype.is_complex)

    def tile(self, seed: int, numel: int) -> torch.Tensor:
        return random_numbers(seed, numel, self.dtype, 3 if self.name == "PRODUCT" else 0)

    def of(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the ranks' parts are together."""
        is_bool = self.dtype == torch.bool
        if self.name == "PREMUL_SUM":
            factor = torch.tensor(self.factor, dtype=torch.float64)
            parts = [torch.mul(part, factor).to(self.dtype) for part in parts]
        if self.name == "AVG":
            total = functools.reduce(torch.add, parts)
            if self.rounding:
                return total / len(parts)
            return torch.div(total, len(parts), rounding_mode="trunc")
        step = {
            "SUM": torch.logical_or if is_bool else torch.add,
            "PREMUL_SUM": torch.logical_or if is_bool else torch.add,
            "PRODUCT": torch.logical_and if is_bool else torch.mul,
            "MIN": torch.minimum,
            "MAX": torch.maximum,
            "BAND": torch.bitwise_and,
            "BOR": torch.bitwise_or,
            "BXOR": torch.bitwise_xor,
        }[self.name]
        return functools.reduce(step, parts)


def draw_reduction(draw: Draw) -> Reduction:
    dtype = draw.dtype(REDUCED)
    names = ["SUM", "SUM", "PREMUL_SUM", "PRODUCT"]
    if dtype != torch.bool:
        names.append("AVG")
    if not dtype.is_complex:
        names += ["MIN", "MAX"]
    if not dtype.is_complex and not dtype.is_floating_point:
        names += ["BAND", "BOR", "BXOR"]
    name = draw.common.choice(names)
    drawn = Reduction(name, dtype, draw.common.choice((0.5, 2.0, 3.0)), draw.common.random() < 0.5)
    draw.prepared.rounding = drawn.rounding
    return drawn


def fill_reduced(draw: Draw, reduction: Reduction, numel: int, part: int = 0) -> tuple:
    """This rank's values, and all ranks' reduction, of `numel` elements."""
    tiles = [
        reduction.tile(seed_of(draw.step.seed, rank, part), numel)
        for rank in range(draw.place.size)
    ]
    return stretch(tiles[draw.place.rank], numel), stretch(reduction.of(tiles), numel)


def low_level(draw: Draw, options: Any, **fields: Any) -> Any:
    """Options of a call of the group itself."""
    for name, value in fields.items():
        setattr(options, name, value)
    options.asyncOp = draw.step.asynchronous
    if (limit := draw.timeout()) is not None:
        options.timeout = limit
    return options


def all_reduce(draw: Draw) -> Prepared:
    place, reduction = draw.place, draw_reduction(draw)
    numel = draw.numel(reduction.dtype)
    memory = draw.memory([numel], reduction.dtype)
    own, total = fill_reduced(draw, reduction, numel)
    memory.fill(0, own)
    draw.result(memory, 0, total)
    tensor = memory.tensors[0]
    plain = reduction.name in ("SUM", "AVG", "PREMUL_SUM") or not reduction.dtype.is_complex
    if plain and draw.common.random() < 0.5:

        def start() -> Any:
            return dist.all_reduce(
                tensor, reduction.op(), group=place.group, async_op=draw.step.asynchronous
            )
    else:
        options = low_level(draw, dist.AllreduceOptions(), reduceOp=reduction.op())

        def start() -> Any:
            return place.group.allreduce([tensor], options)

    return draw.done(f"{reduction.name} {draw.type_name}[{numel}]", start)


def reduce(draw: Draw) -> Prepared:
    place, reduction = draw.place, draw_reduction(draw)
    numel, root = draw.numel(reduction.dtype), draw.common.randrange(place.size)
    memory = draw.memory([numel], reduction.dtype)
    own, total = fill_reduced(draw, reduction, numel)
    memory.fill(0, own)
    if place.rank == root:
        draw.result(memory, 0, total)
    options = low_level(draw, dist.ReduceOptions(), reduceOp=reduction.op(), rootRank=root)
    return draw.done(
        f"{reduction.name} {draw.type_name}[{numel}] to {root}",
        lambda: place.group.reduce([memory.tensors[0]], options),
    )


def reduce_scatter(draw: Draw) -> Prepared:
    place, reduction = draw.place, draw_reduction(draw)
    sizes = draw.sizes(draw.numel(reduction.dtype, place.size), place.size)
    inputs = draw.memory(sizes, reduction.dtype)
    wanted = None
    for part, size in enumerate(sizes):
        own, total = fill_reduced(draw, reduction, size, part)
        inputs.fill(part, own)
        wanted = total if part == place.rank else wanted
    in_place = draw.common.random() < 0.2
    output = inputs if in_place else draw.memory([sizes[place.rank]], reduction.dtype)
    part = place.rank if in_place else 0
    draw.result(output, part, wanted)
    options = low_level(draw, dist.ReduceScatterOptions(), reduceOp=reduction.op())
    return draw.done(
        f"{reduction.name} {draw.type_name}{sizes}{' in place' if in_place else ''}",
        lambda: place.group.reduce_scatter([output.tensors[part]], [inputs.tensors], options),
    )


def alias_offset(draw: Draw, numel: int) -> tuple[str, int]:
    """Where in a tensor of all ranks' shares the one share lies: as usual, or across two."""
    way = draw.common.choice(("", "", "in place", "overlapping"))
    if way in WITHOUT:
        way = ""
    if way == "overlapping" and numel > 1:
        draw.prepared.may_refuse = True
        index = draw.common.randrange(max(1, draw.place.size - 1))
        return way, index * numel + draw.common.randint(1, numel - 1)
    return ("", -1) if way != "in place" else (way, draw.place.rank * numel)


def reduce_scatter_tensor(draw: Draw) -> Prepared:
    place, reduction = draw.place, draw_reduction(draw)
    numel = draw.numel(reduction.dtype, place.size)
    way, at = alias_offset(draw, numel)
    whole = draw.memory([numel * place.size], reduction.dtype, contiguous=True)
    own, total = fill_reduced(draw, reduction, numel * place.size)
    whole.fill(0, own)
    source, share = whole.tensors[0], total[place.rank * numel : (place.rank + 1) * numel]
    if at < 0:
        memory = draw.memory([numel], reduction.dtype)
        output = memory.tensors[0]
        draw.result(memory, 0, share)
    else:
        output = source.view(-1)[at : at + numel]
        after = own.clone()
        after[at : at + numel] = share
        draw.result(whole, 0, after)
    text = f"{reduction.name} {draw.type_name}[{numel}] {way}"
    if draw.common.random() < 0.5 and not reduction.dtype.is_complex:
        return draw.done(
            text,
            lambda: dist.reduce_scatter_tensor(
                output, source, reduction.op(), place.group, draw.step.asynchronous
            ),
        )
    options = low_level(draw, dist.ReduceScatterOptions(), reduceOp=reduction.op())
    return draw.done(text, lambda: place.group._reduce_scatter_base(output, source, options))


def sparse_all_reduce(draw: Draw) -> Prepared:
    place = draw.place
    dtype = draw.dtype("float32 float64 int64")
    rows = draw.common.choice((1, 5, 300))

    def of(rank: int) -> torch.Tensor:
        own = random.Random(seed_of(draw.step.seed, rank))
        count = own.choice((0, 1, rows, 3 * rows))
        at = torch.tensor([[own.randrange(rows) for _ in range(count)]], dtype=torch.int64)
        values = torch.tensor([own.randint(1, 99) for _ in range(count)])[:, None] * torch.arange(
            1, 4
        )
        return torch.sparse_coo_tensor(at, values.to(dtype), (rows, 3))

    tensor = of(place.rank)
    total = sum(of(rank).to_dense() for rank in range(place.size))

    def check(_: Any) -> str | None:
        got = tensor.to_dense()
        return None if torch.equal(got, total) else f"got {got.tolist()}, expected {total.tolist()}"

    draw.prepared.check = check
    return draw.done(
        f"{draw.type_name}[{rows}, 3]",
        lambda: dist.all_reduce(tensor, group=place.group, async_op=draw.step.asynchronous),
    )


def reductions_at_once(draw: Draw) -> Prepared:
    """allreduce_coalesced, the coalescing manager, and _start_coalescing."""
    place, reduction = draw.place, draw_reduction(draw)
    count = draw.common.randint(1, 6)
    sizes = draw.sizes(draw.numel(reduction.dtype, count), count)
    memory = draw.memory(sizes, reduction.dtype)
    for part, size in enumerate(sizes):
        own, total = fill_reduced(draw, reduction, size, part)
        memory.fill(part, own)
        draw.result(memory, part, total)
    ways = ("group",) if reduction.dtype.is_complex else ("group", "manager", "between")
    way = draw.common.choice(ways)

    def start() -> Any:
        if way == "group":
            options = low_level(draw, dist.AllreduceCoalescedOptions(), reduceOp=reduction.op())
            return place.group.allreduce_coalesced(memory.tensors, options)
        if way == "manager":
            with dist.distributed_c10d._coalescing_manager(
                place.group, async_ops=draw.step.asynchronous
            ) as manager:
                for tensor in memory.tensors:
                    dist.all_reduce(tensor, reduction.op(), group=place.group)
            return manager if draw.step.asynchronous else None
        place.group._start_coalescing(CPU)
        for tensor in memory.tensors:
            place.group.allreduce(
                [tensor], low_level(draw, dist.AllreduceOptions(), reduceOp=reduction.op())
            )
        work = place.group._end_coalescing(CPU)
        return work if draw.step.asynchronous else work.wait() and None

    return draw.done(f"{reduction.name} {draw.type_name}{sizes} by {way}", start)


def reduce_scatters_at_once(draw: Draw) -> Prepared:
    place, reduction = draw.place, draw_reduction(draw)
    count = draw.common.randint(1, 5)
    sizes = draw.sizes(draw.numel(reduction.dtype, place.size * count), count)
    inputs = draw.memory([size * place.size for size in sizes], reduction.dtype, contiguous=True)
    outputs = draw.memory(sizes, reduction.dtype)
    for part, size in enumerate(sizes):
        own, total = fill_reduced(draw, reduction, size * place.size, part)
        inputs.fill(part, own)
        draw.result(outputs, part, total[place.rank * size : (place.rank + 1) * size])

    def start() -> Any:
        with dist.distributed_c10d._coalescing_manager(
            place.group, async_ops=draw.step.asynchronous
        ) as manager:
            for output, source in zip(outputs.tensors, inputs.tensors, strict=True):
                dist.reduce_scatter_tensor(output, source, reduction.op(), place.group)
        return manager if draw.step.asynchronous else None

    return draw.done(f"{reduction.name} {draw.type_name}{sizes}", start)


# --- data from rank to rank


def broadcast(draw: Draw) -> Prepared:
    place, dtype = draw.place, draw.dtype(MOVED)
    numel, root = draw.numel(dtype), draw.common.randrange(place.size)
    memory = draw.memory([numel], dtype)
    sent = draw.bits(root, numel, dtype)
    if place.rank == root:
        memory.fill(0, sent)
    else:
        draw.result(memory, 0, sent)
    options = low_level(draw, dist.BroadcastOptions(), rootRank=root)
    return draw.done(
        f"{draw.type_name}[{numel}] from {root}",
        lambda: place.group.broadcast([memory.tensors[0]], options),
    )


def all_gather(draw: Draw) -> Prepared:
    place, dtype = draw.place, draw.dtype(MOVED)
    sizes = draw.sizes(draw.numel(dtype, place.size), place.size)
    outputs = draw.memory(sizes, dtype)
    in_place = draw.common.random() < 0.2
    source = outputs if in_place else draw.memory([sizes[place.rank]], dtype)
    part = place.rank if in_place else 0
    source.fill(part, draw.bits(place.rank, sizes[place.rank], dtype))
    for rank, size in enumerate(sizes):
        draw.result(outputs, rank, draw.bits(rank, size, dtype))
    options = low_level(draw, dist.distributed_c10d.AllgatherOptions())
    return draw.done(
        f"{draw.type_name}{sizes}{' in place' if in_place else ''}",
        lambda: place.group.allgather([outputs.tensors], [source.tensors[part]], options),
    )


def all_gather_into_tensor(draw: Draw) -> Prepared:
    place, dtype = draw.place, draw.dtype(MOVED)
    numel = draw.numel(dtype, place.size)
    way, at = alias_offset(draw, numel)
    whole = draw.memory([numel * place.size], dtype, contiguous=True)
    own = draw.bits(place.rank, numel, dtype)
    if at < 0:
        memory = draw.memory([numel], dtype)
        memory.fill(0, own)
        source = memory.tensors[0]
    else:
        source = whole.tensors[0].view(-1)[at : at + numel]
        source.copy_(own)
    draw.result(whole, 0, torch.cat([draw.bits(rank, numel, dtype) for rank in range(place.size)]))
    output = whole.tensors[0]
    text = f"{draw.type_name}[{numel}] {way}"
    if draw.common.random() < 0.5:
        return draw.done(
            text,
            lambda: dist.all_gather_into_tensor(
                output, source, place.group, draw.step.asynchronous
            ),
        )
    options = low_level(draw, dist.distributed_c10d.AllgatherOptions())
    return draw.done(text, lambda: place.group._allgather_base(output, source, options))


def all_gathers_at_once(draw: Draw) -> Prepared:
    place, dtype = draw.place, draw.dtype(MOVED)
    count = draw.common.randint(1, 5)
    sizes = draw.sizes(draw.numel(dtype, place.size * count), count)
    inputs = draw.memory(sizes, dtype)
    for part, size in enumerate(sizes):
        inputs.fill(part, draw.bits(place.rank, size, dtype, part))
    ways = ("group", "manager") if not dtype.is_complex else ("group",)
    way = draw.common.choice(ways)
    if way == "group":
        outputs = draw.memory(sizes * place.size, dtype)
        for rank, (part, size) in itertools.product(range(place.size), enumerate(sizes)):
            at = rank * len(sizes) + part
            draw.result(outputs, at, draw.bits(rank, size, dtype, part))
    else:
        outputs = draw.memory([size * place.size for size in sizes], dtype, contiguous=True)
        for part, size in enumerate(sizes):
            every = [draw.bits(rank, size, dtype, part) for rank in range(place.size)]
            draw.result(outputs, part, torch.cat(every))

    def start() -> Any:
        if way == "group":
            lists = [
                outputs.tensors[rank * len(sizes) : (rank + 1) * len(sizes)]
                for rank in range(place.size)
            ]
            options = low_level(draw, dist.distributed_c10d.AllgatherOptions())
            return place.group.allgather_coalesced(lists, inputs.tensors, options)
        with dist.distributed_c10d._coalescing_manager(
            place.group, async_ops=draw.step.asynchronous
        ) as manager:
            for output, source in zip(outputs.tensors, inputs.tensors, strict=True):
                dist.all_gather_into_tensor(output, source, place.group)
        return manager if draw.step.asynchronous else None

    return draw.done(f"{draw.type_name}{sizes} by {way}", start)


def gather(draw: Draw) -> Prepared:
    place, dtype = draw.place, draw.dtype(MOVED)
    root = draw.common.randrange(place.size)
    sizes = draw.sizes(draw.numel(dtype, place.size), place.size)
    at_root = place.rank == root
    outputs = draw.memory(sizes, dtype) if at_root else None
    in_place = at_root and draw.local.random() < 0.2
    source = outputs if in_place else draw.memory([sizes[place.rank]], dtype)
    part = place.rank if in_place else 0
    source.fill(part, draw.bits(place.rank, sizes[place.rank], dtype))
    for rank, size in enumerate(sizes if at_root else []):
        draw.result(outputs, rank, draw.bits(rank, size, dtype))
    options = low_level(draw, dist.GatherOptions(), rootRank=root)
    return draw.done(
        f"{draw.type_name}{sizes} to {root}{' in place' if in_place else ''}",
        lambda: place.group.gather(
            [outputs.tensors] if at_root else [], [source.tensors[part]], options
        ),
    )


def scatter(draw: Draw) -> Prepared:
    place, dtype = draw.place, draw.dtype(MOVED)
    root = draw.common.randrange(place.size)
    sizes = draw.sizes(draw.numel(dtype, place.size), place.size)
    at_root = place.rank == root
    inputs = draw.memory(sizes, dtype) if at_root else None
    for rank, size in enumerate(sizes if at_root else []):
        inputs.fill(rank, draw.bits(root, size, dtype, rank))
    in_place = at_root and draw.local.random() < 0.2
    output = inputs if in_place else draw.memory([sizes[place.rank]], dtype)
    part = place.rank if in_place else 0
    draw.result(output, part, draw.bits(root, sizes[place.rank], dtype, place.rank))
    options = low_level(draw, dist.ScatterOptions(), rootRank=root)
    return draw.done(
        f"{draw.type_name}{sizes} from {root}{' in place' if in_place else ''}",
        lambda: place.group.scatter(
            [output.tensors[part]], [inputs.tensors] if at_root else [], options
        ),
    )


def all_to_all(draw: Draw) -> Prepared:
    place, dtype = draw.place, draw.dtype(MOVED)
    numel, ranks = draw.numel(dtype, place.size), range(place.size)
    sizes = [draw.sizes(numel, place.size) for _ in ranks]  # by sender, receiver
    in_place = draw.common.random() < 0.1
    if in_place:  # the same buffers there and back
        sizes = [[numel] * place.size for _ in ranks]
        draw.prepared.may_refuse = True
    inputs = draw.memory(sizes[place.rank], dtype)
    outputs = inputs
    for to in ranks:
        inputs.fill(to, draw.bits(place.rank, sizes[place.rank][to], dtype, to))
    if not in_place:
        outputs = draw.memory([sizes[rank][place.rank] for rank in ranks], dtype)
    for rank in ranks:
        draw.result(outputs, rank, draw.bits(rank, sizes[rank][place.rank], dtype, place.rank))
    options = low_level(draw, dist.AllToAllOptions())
    return draw.done(
        f"{draw.type_name}{sizes}{' in place' if in_place else ''}",
        lambda: place.group.alltoall(outputs.tensors, inputs.tensors, options),
    )


def all_to_all_single(draw: Draw) -> Prepared:
    place, dtype = draw.place, draw.dtype(MOVED)
    width, ranks = draw.common.choice((1, 1, 3)), range(place.size)
    numel = draw.numel(dtype, place.size * width)
    even = draw.common.random() < 0.5
    rows = [[numel] * place.size if even else draw.sizes(numel, place.size) for _ in ranks]
    sent, taken = rows[place.rank], [rows[rank][place.rank] for rank in ranks]
    source = draw.memory([sum(sent) * width], dtype, contiguous=True)
    output = draw.memory([sum(taken) * width], dtype, contiguous=True)
    parts = [draw.bits(place.rank, count * width, dtype, to) for to, count in enumerate(sent)]
    source.fill(0, torch.cat(parts))
    draw.result(
        output,
        0,
        torch.cat([draw.bits(r, n * width, dtype, place.rank) for r, n in enumerate(taken)]),
    )
    options = low_level(draw, dist.AllToAllOptions())
    splits = ([], []) if even and draw.common.random() < 0.5 else (taken, sent)
    flat_in = source.tensors[0].view(sum(sent), width)
    flat_out = output.tensors[0].view(sum(taken), width)
    return draw.done(
        f"{draw.type_name}{rows} rows of {width}",
        lambda: place.group.alltoall_base(flat_out, flat_in, *splits, options),
    )


# --- meetings


def barrier(draw: Draw) -> Prepared:
    place, way = draw.place, draw.common.choice(("plain", "plain", "device_ids", "timeout"))
    if way in WITHOUT:
        way = "plain"
    draw.prepared.meets = True

    def start() -> Any:
        if way == "timeout":
            return place.group.barrier(low_level(draw, dist.BarrierOptions()))
        device_ids = [0] if way == "device_ids" else None
        return dist.barrier(place.group, draw.step.asynchronous, device_ids)

    return draw.done(way, start)


def monitored_barrier(draw: Draw) -> Prepared:
    place, limit = draw.place, draw.timeout() or timedelta(seconds=60)
    wait_all = draw.common.random() < 0.5
    draw.prepared.meets = True
    return draw.done(
        f"{limit}", lambda: place.group.monitored_barrier(limit, wait_all_ranks=wait_all)
    )


# --- messages


def message(draw: Draw) -> Prepared:
    """One from a rank to another; the rest do nothing."""
    place, dtype = draw.place, draw.dtype(MOVED)
    numel = draw.numel(dtype)
    sender, receiver = draw.common.sample(range(place.size), 2)
    tag = draw.common.choice(place.tags)
    text = f"{draw.type_name}[{numel}] {sender} to {receiver}, tag {tag}"
    if place.rank not in (sender, receiver):
        return draw.done(text, lambda: None)
    memory = draw.memory([numel], dtype)
    sent = draw.bits(sender, numel, dtype)
    if place.rank == sender:
        memory.fill(0, sent)
    else:
        draw.result(memory, 0, sent)

    def start() -> Any:
        waits = not draw.step.asynchronous
        if place.rank == sender:
            call, peer = (dist.send if waits else dist.isend), {"group_dst": receiver}
        else:
            call, peer = (dist.recv if waits else dist.irecv), {"group_src": sender}
        work = call(memory.tensors[0], group=place.group, tag=tag, **peer)
        return None if waits else work

    return draw.done(text, start)


def from_anybody(draw: Draw) -> Prepared:
    """All send to one, which takes them as they come."""
    place, dtype = draw.place, draw.dtype(MOVED)
    numel, root = draw.numel(dtype), draw.common.randrange(place.size)
    text = f"{draw.type_name}[{numel}] to {root}"
    count = place.size - 1 if place.rank == root else 1
    memory = draw.memory([numel] * count, dtype)
    if place.rank != root:
        memory.fill(0, draw.bits(place.rank, numel, dtype))
        return draw.done(
            text,
            lambda: dist.isend(memory.tensors[0], group=place.group, group_dst=root, tag=place.tag),
        )
    sources: list[int] = []
    memory.snapshot()

    def check(works: Any) -> str | None:
        found = sources or [work._source_rank() for work in works]
        ranks = [place.ranks.index(rank) if sources else rank for rank in found]
        if sorted(ranks) != [rank for rank in range(place.size) if rank != root]:
            return f"messages came from {ranks}"
        for part, rank in enumerate(ranks):
            draw.result(memory, part, draw.bits(rank, numel, dtype))
        return memory.wrong(draw.prepared.results[0])

    def start() -> Any:
        if draw.step.asynchronous:
            return [
                dist.irecv(tensor, group=place.group, tag=place.tag) for tensor in memory.tensors
            ]
        for tensor in memory.tensors:
            sources.append(dist.recv(tensor, group=place.group, tag=place.tag))
        return None

    prepared = draw.done(text, start)
    prepared.check = check
    prepared.results[0] = dict(enumerate(memory.tensors))
    return prepared


def batch(draw: Draw) -> Prepared:
    """batch_isend_irecv of some messages between any ranks."""
    place, dtype = draw.place, draw.dtype(MOVED)
    tag = draw.common.choice(place.tags)
    ways = list(itertools.permutations(range(place.size), 2))
    mail = [
        (*draw.common.choice(ways), draw.numel(dtype, 2))
        for _ in range(draw.common.randint(1, 2 * place.size))
    ]
    ops = []
    for number, (sender, receiver, numel) in enumerate(mail):
        if place.rank not in (sender, receiver):
            continue
        memory = draw.memory([numel], dtype)
        sent = draw.bits(sender, numel, dtype, number)
        sends = place.rank == sender
        if sends:
            memory.fill(0, sent)
        else:
            draw.result(memory, 0, sent)
        ops.append((sends, memory.tensors[0], receiver if sends else sender))

    def start() -> Any:
        if not ops:
            return None
        return dist.batch_isend_irecv(
            [
                dist.P2POp(
                    dist.isend if sends else dist.irecv,
                    tensor,
                    group=place.group,
                    tag=tag,
                    group_peer=peer,
                )
                for sends, tensor, peer in ops
            ]
        )

    return draw.done(f"{draw.type_name} {mail}, tag {tag}", start)


MEETINGS = (barrier, monitored_barrier)
MESSAGES = (message, from_anybody, batch)
REDUCTIONS = (all_reduce, reduce, reduce_scatter, reduce_scatter_tensor)
MOVEMENTS = (
    broadcast,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
)
AT_ONCE = (reductions_at_once, reduce_scatters_at_once, all_gathers_at_once, sparse_all_reduce)
KINDS = {
    function.__name__: function
    for function in (*MEETINGS, *MESSAGES, *REDUCTIONS, *MOVEMENTS, *AT_ONCE)
}


def prepare(step: Step, place: Place) -> Prepared:
    return KINDS[step.kind](Draw(step, place))


__all__ = ["KINDS", "Place", "Prepared", "Step", "prepare", "same_bytes"]
