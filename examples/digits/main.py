"""What torchrun starts in each of the four processes: joins the group and plays one role."""

from __future__ import annotations

import faulthandler
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.distributed.elastic.multiprocessing.errors import record

from examples.digits import backend, config, evaluator, server, trainer


def play(settings: config.Config, rank: int, trainers: dist.ProcessGroup | None) -> None:
    """Does what this rank is there for; returns when its own part is done."""
    name = config.WORKERS[rank]
    if name == config.SERVER:
        server.run(settings)
    elif name == config.EVALUATOR:
        evaluator.run(settings)
    else:
        trainer.run(settings, config.TRAINERS.index(name), trainers)


def hush() -> None:
    """Keeps two warnings about PyTorch's own code off the screen.

    Warning filters do not reach the first, since PyTorch resets them around it.
    """
    show = warnings.showwarning
    known = ("`TorchScript` support for functional optimizers", "You are using a Backend")

    def selective(message: Warning | str, *rest: Any) -> None:
        if not str(message).startswith(known):
            show(message, *rest)

    warnings.showwarning = selective


@record
def main() -> None:
    """One worker, from joining to leaving."""
    settings = config.parse(None, "examples.digits.main")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size != len(config.WORKERS):
        raise SystemExit(f"this example is made for {len(config.WORKERS)} processes")
    # The last resort: nothing below waits longer than the deadline, and this says where if it does.
    faulthandler.dump_traceback_later(settings.deadline + 30, exit=True)
    torch.set_num_threads(1)
    backend.join(settings.backend, config.WORKERS[rank], rank, world_size)
    trainers = backend.join_process_group(settings.backend) if settings.ddp else None
    play(settings, rank, trainers)
    rpc.shutdown(graceful=True, timeout=settings.deadline)
    if settings.ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    hush()
    main()
