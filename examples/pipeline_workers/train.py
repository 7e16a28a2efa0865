"""Trains a model whose stages are on three workers, of which some are killed.

    python -m weft.launch --workers 2 --restarts 3 -m examples.pipeline_workers.train --kills 3
    torchrun --nproc-per-node 3 -m examples.pipeline_workers.train

Exits with 0 only if the losses and the parameters are, bit for bit, those of a run in one process.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
from torch import nn

import weft
import weft.worker
from examples.pipeline_workers.tasks import TASKS, Task

WORKERS = ("driver", "worker1", "worker2")  # by rank
CHUNKS = 4
EVERY = 5  # steps between two checkpoints
PATIENCE = 300.0  # seconds until a worker that was killed must be back


class Training:
    """The driver's side: a Pipe that goes back to its checkpoint when a worker was lost."""

    def __init__(self, task: Task, schedule: str, folder: Path) -> None:
        self._task, self._folder = task, folder
        self._saved = 0  # the step that the checkpoint stands before
        layers = task.layers()
        placed = [
            weft.WithDevice(layer, f"{WORKERS[at * len(WORKERS) // len(layers)]}/cpu")
            for at, layer in enumerate(layers)
        ]
        self.pipe = weft.Pipe(nn.Sequential(*placed), chunks=CHUNKS, schedule=schedule)
        self._optimizer = self.pipe.optimizer(torch.optim.AdamW, lr=3e-3)
        self.pipe.save_checkpoint(folder)

    def step(self, number: int) -> float:
        """One step; its loss."""
        if number % EVERY == 0 and number != self._saved:
            self.pipe.save_checkpoint(self._folder)
            self._saved = number
        self._optimizer.zero_grad()
        loss = self.pipe.step(*self._task.batch(number), loss=self._task.loss)
        self._optimizer.step()
        return loss.item()

    def return_to_checkpoint(self) -> int:
        """Waits until all workers are there, which get their stages; the step to go on with."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.pipe.load_checkpoint(self._folder)
                return self._saved
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


class Killer:
    """Kills workers with ``kill -9`` in the middle of some steps. Who started them starts them again."""

    def __init__(self, steps: int, kills: int, seed: int) -> None:
        self._chance = random.Random(seed)
        self._left = set(self._chance.sample(range(steps - 1), kills))
        self.killed = 0

    def strike(self, step: int) -> threading.Timer | None:
        """Begins to, if the step is one of those."""
        if step not in self._left:
            return None
        self._left.remove(step)
        self.killed += 1
        victim = rpc.rpc_sync(self._chance.choice(WORKERS[1:]), os.getpid)
        timer = threading.Timer(self._chance.uniform(0, 0.05), os.kill, [victim, signal.SIGKILL])
        timer.start()
        return timer


def train(training: Training, settings: argparse.Namespace) -> list[float]:
    """All steps, with a worker killed in the middle of some; their losses."""
    killer = Killer(settings.steps, settings.kills, settings.seed)
    losses: dict[int, float] = {}
    step = seen = 0
    while step < settings.steps:
        timer = killer.strike(step)
        try:
            losses[step] = training.step(step)
        except RuntimeError as error:
            if killer.killed == seen:
                raise
            seen = killer.killed
            print(f"step {step}: {str(error).splitlines()[0]}", flush=True)
            step = training.return_to_checkpoint()
            print(f"goes on with step {step}", flush=True)
            continue
        finally:
            if timer is not None:
                timer.join()
        if step % EVERY == 0:
            print(f"step {step}: loss {losses[step]:.4f}", flush=True)
        step += 1
    return [losses[number] for number in range(settings.steps)]


def alone(task: Task, steps: int) -> tuple[list[float], nn.Sequential]:
    """The same micro-batches one after the other in this process: losses and layers."""
    plain, losses = task.layers(), []
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    for step in range(steps):
        inputs, wanted = task.batch(step)
        optimizer.zero_grad()
        total = torch.zeros(())
        for part, target in zip(inputs.chunk(CHUNKS), wanted.chunk(CHUNKS), strict=True):
            loss = task.loss(plain(part), target) * (len(part) / len(inputs))
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        losses.append(total.item())
    return losses, plain


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline_workers.train")
    parser.add_argument("--data", choices=TASKS, default="play")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kills", type=int, default=0, help="steps in which a worker is killed")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b"), default="1f1b")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    return parser.parse_args()


def drive(settings: argparse.Namespace) -> int:
    """Runs the example and judges its result. The workers are there, or will be."""
    torch.set_num_threads(1)
    task = TASKS[settings.data]()
    with tempfile.TemporaryDirectory() as folder:
        weft.init_rpc("driver", rank=0, world_size=len(WORKERS))
        training = Training(task, settings.schedule, Path(folder) / "checkpoint")
        losses = train(training, settings)
        found = training.pipe.state_dict()
        rpc.shutdown()
    expected, plain = alone(task, settings.steps)
    same = losses == expected and all(
        torch.equal(found[name], value) for name, value in plain.state_dict().items()
    )
    print(
        f"{settings.kills} kills; losses and parameters equal those of one process bit for bit: {same}"
    )
    return 0 if same else 1


def main() -> int:
    """What each process runs: the first drives, the others serve."""
    if "RANK" not in os.environ:
        sys.exit(f"this needs its workers; start it by one of the ways in\n{__doc__}")
    if os.environ["RANK"] == "0":
        return drive(parse())
    weft.worker.main([])
    return 0


if __name__ == "__main__":
    sys.exit(main())
