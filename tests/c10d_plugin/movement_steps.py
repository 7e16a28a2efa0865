"""The operations that move data: broadcast, gather, scatter, all_gather, all_to_all."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from drawn_step import MOVED, Draw, Prepared, alias_offset, coalesced, low_level


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
        lists = [
            outputs.tensors[rank * len(sizes) : (rank + 1) * len(sizes)]
            for rank in range(place.size)
        ]
        options = low_level(draw, dist.distributed_c10d.AllgatherOptions())
        return place.group.allgather_coalesced(lists, inputs.tensors, options)

    def record() -> None:
        for output, source in zip(outputs.tensors, inputs.tensors, strict=True):
            dist.all_gather_into_tensor(output, source, place.group)

    text = f"{draw.type_name}{sizes} by {way}"
    return draw.done(text, start if way == "group" else coalesced(draw, record))


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
