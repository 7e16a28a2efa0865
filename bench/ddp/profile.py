"""Where the time of a DDP step goes: what the backward pass takes, how long buckets are on their way, and
how much of that it hides. ``./dev bench ddp --profile``."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.ddp.ranks import WIDTH, model
from bench.limits import pin

_STEPS = 7


@dataclass
class Step:
    """Times of one step, in seconds since its backward pass began."""

    forward: float = 0.0
    asked: list[float] = field(default_factory=list)  # when each bucket was ready
    done: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    backward: float = 0.0


class Watch:
    """A communication hook that does what DDP does without one, and notes when."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.step = Step()
        self.began = 0.0

    def __call__(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future:
        step, tensor = self.step, bucket.buffer()
        step.asked.append(time.perf_counter() - self.began)
        step.bytes.append(tensor.numel() * tensor.element_size())
        tensor.div_(dist.get_world_size(self.group))
        future = dist.all_reduce(tensor, group=self.group, async_op=True).get_future()

        def note(done: torch.futures.Future) -> torch.Tensor:
            step.done.append(time.perf_counter() - self.began)
            return done.value()[0]

        return future.then(note)


def _run(trained: nn.Module, inputs: torch.Tensor, watch: Watch | None) -> Step:
    step = Step()
    start = time.perf_counter()
    loss = trained(inputs).sum()
    began = time.perf_counter()
    if watch is not None:
        watch.step, watch.began = step, began
    loss.backward()
    step.forward, step.backward = began - start, time.perf_counter() - began
    trained.zero_grad()
    return step


def _words(name: str, steps: list[Step]) -> str:
    def ms(value) -> str:
        return f"{statistics.median(map(value, steps)) * 1e3:.1f}"

    text = f"| {name} | {ms(lambda s: s.forward)} | {ms(lambda s: s.backward)} "
    if not steps[0].asked:
        return text + "| | | |"
    on_the_way = ms(lambda s: sum(b - a for a, b in zip(s.asked, s.done, strict=True)))
    after = ms(lambda s: s.done[-1] - s.asked[-1])
    sizes = " ".join(f"{size / 2**20:.0f}" for size in steps[0].bytes)
    return text + f"| {on_the_way} | {after} | {sizes} |"


def rank(number: int, ranks: int, port: int, pinned: bool, answers: Any) -> None:
    """One rank: puts the table, in Markdown, into ``answers``."""
    cores = sorted(os.sched_getaffinity(0))
    pin(cores[number % len(cores)] if pinned else None)
    torch.set_num_threads(1)
    import weft  # noqa: F401  registers the backend

    dist.init_process_group(
        "weft", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=ranks
    )
    inputs, lines = torch.randn(8, WIDTH), []
    plain = model()
    for _ in range(2):
        steps = [_run(plain, inputs, None) for _ in range(_STEPS)]
    lines.append(_words("without DDP", steps))
    for backend in ("weft", "gloo"):
        group = dist.group.WORLD if backend == "weft" else dist.new_group(backend="gloo")
        for views in (False, True):
            trained = DistributedDataParallel(
                model(), process_group=group, gradient_as_bucket_view=views
            )
            watch = Watch(group)
            trained.register_comm_hook(None, watch)
            for _ in range(2):  # the first steps rebuild the buckets
                dist.barrier()
                steps = [_run(trained, inputs, watch) for _ in range(_STEPS)]
            lines.append(_words(f"{backend}{', views' if views else ''}", steps))
    answers.put(
        "| rank's step | forward ms | backward ms | buckets on their way ms | "
        "the last of them ms | MiB of each |\n|---|---|---|---|---|---|\n" + "\n".join(lines)
    )
    dist.barrier()
    dist.destroy_process_group()
