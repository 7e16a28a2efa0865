"""Barriers, and messages from one rank to another."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from drawn_step import MOVED, Draw, Prepared, low_level


def barrier(draw: Draw) -> Prepared:
    place, way = draw.place, draw.common.choice(("plain", "plain", "device_ids", "timeout"))
    draw.prepared.meets = True

    def start() -> Any:
        if way == "timeout":
            return place.group.barrier(low_level(draw, dist.BarrierOptions()))
        device_ids = [0] if way == "device_ids" else None
        return dist.barrier(place.group, draw.step.asynchronous, device_ids)

    return draw.done(way, start)


def monitored_barrier(draw: Draw) -> Prepared:
    place, limit = draw.place, draw.timeout() or timedelta(seconds=30)
    wait_all = draw.common.random() < 0.5
    draw.prepared.meets = True
    return draw.done(
        f"{limit}", lambda: place.group.monitored_barrier(limit, wait_all_ranks=wait_all)
    )


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
