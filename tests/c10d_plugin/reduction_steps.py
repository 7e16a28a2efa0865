"""The operations that add up: all_reduce, reduce, reduce_scatter, and several at once."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from drawn_step import CPU, REDUCED, Draw, Prepared, alias_offset, coalesced, low_level
from watched_memory import random_numbers, seed_of, stretch


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
        place.group._start_coalescing(CPU)
        for tensor in memory.tensors:
            place.group.allreduce(
                [tensor], low_level(draw, dist.AllreduceOptions(), reduceOp=reduction.op())
            )
        work = place.group._end_coalescing(CPU)
        return work if draw.step.asynchronous else work.wait() and None

    def record() -> None:
        for tensor in memory.tensors:
            dist.all_reduce(tensor, reduction.op(), group=place.group)

    text = f"{reduction.name} {draw.type_name}{sizes} by {way}"
    return draw.done(text, coalesced(draw, record) if way == "manager" else start)


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

    def record() -> None:
        for output, source in zip(outputs.tensors, inputs.tensors, strict=True):
            dist.reduce_scatter_tensor(output, source, reduction.op(), place.group)

    return draw.done(f"{reduction.name} {draw.type_name}{sizes}", coalesced(draw, record))
