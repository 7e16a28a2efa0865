"""Makes the pictures of docs/guide/observe.md from a run of three workers on this machine.

    python -m examples.observe.pictures FOLDER

One of them is late for an all_reduce, since it waits for a function of another one. Writes trace.json,
which Perfetto opens, and trace.svg, top.svg, hang.svg and waits.svg.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

import weft
from examples.observe import draw

WORKERS = 3
STEPS = 60
_SLOW = range(20, 40)  # the steps in which rank 1 is slow


def forward(inputs: torch.Tensor, rounds: int) -> torch.Tensor:
    """Some work."""
    for _ in range(rounds):
        inputs = torch.tanh(inputs @ inputs)
    return inputs


def evaluate(seconds: float) -> None:
    """What others wait for."""
    time.sleep(seconds)


def step() -> None:
    """One step of rank 0: two calls side by side, and one after them."""
    inputs = torch.rand(192, 192)
    futures = [
        rpc.rpc_async(f"trainer{rank}", forward, args=(inputs, 2)) for rank in range(1, WORKERS)
    ]
    outputs = [future.wait() for future in futures]
    rpc.rpc_sync("trainer2", torch.add, args=(outputs[0], outputs[1]))


def run(rank: int, folder: Path, meeting: str) -> None:
    """One worker."""
    os.environ.update(WEFT_METRICS="127.0.0.1:0", WEFT_HANG_REPORT="3")
    torch.set_num_threads(1)
    logging.basicConfig(
        filename=folder / f".log{rank}", format=f"rank {rank}: %(message)s", level=logging.WARNING
    )
    dist.init_process_group("weft", init_method=f"{meeting}.group", rank=rank, world_size=WORKERS)
    weft.init_rpc(f"trainer{rank}", rank=rank, world_size=WORKERS, init_method=f"{meeting}.rpc")
    dist.barrier()
    if rank == 0:
        call = rpc.rpc_async("trainer2", evaluate, args=(6.0,))
        time.sleep(4)
        draw.terminal(_top(), folder / "top.svg")
        call.wait()
    dist.all_reduce(torch.ones(2))  # the others wait here for rank 0
    if rank == 0:
        logs = sorted(folder.glob(".log*"))
        lines = [line for log in logs for line in log.read_text().splitlines()]
        draw.terminal(lines, folder / "hang.svg")
    waits = [_waits(number) for number in range(STEPS)]
    if rank == 0:
        curves = {f"for rank {other}": [one.get(other, 0.0) for one in waits] for other in (1, 2)}
        draw.chart("seconds that rank 0 has waited, by step", curves, folder / "waits.svg")
        step()  # connects
        with weft.trace(folder / "trace.json"):
            step()
        draw.trace(folder / "trace.json", folder / "trace.svg")
    rpc.shutdown()


def _top() -> list[str]:
    """The lines of weft.top."""
    from rich.console import Console

    from weft import top
    from weft._observe import exporter

    host, port = exporter.address() or ("", 0)
    console = Console(width=112)
    with console.capture() as captured:
        console.print(top.View().table(top.fetch([f"{host}:{port}"], "group")))
    command = f"$ python -m weft.top {host}:{port}"
    return [command, *(line.rstrip() for line in captured.get().splitlines() if line.strip())]


def _waits(number: int) -> dict[int, float]:
    """A step of all ranks; whom this one has waited for until then."""
    slow = dist.get_rank() == 1 and number in _SLOW
    time.sleep(0.06 if slow else 0.02)
    dist.all_reduce(torch.ones(2))
    ((_, group),) = weft.metrics().groups.items()
    return group.waited


def main(folder: Path) -> None:
    """Runs the workers."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = f"file://{folder.resolve()}/.meeting-{os.getpid()}"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=run, args=(rank, folder, meeting)) for rank in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        sys.exit("a worker has failed")
    for left in [*folder.glob(".log*"), *folder.glob(".meeting-*")]:
        left.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
