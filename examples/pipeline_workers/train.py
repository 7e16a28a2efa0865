"""Trains the play's transformer with its stages on three workers, of which some are killed.

    python -m examples.pipeline_workers.train [--steps 60] [--kills 3] [--schedule 1f1b]

Exits with 0 only if the parameters are, bit for bit, those of a run in one process.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

import weft
from examples.pipeline import model, text
from examples.pipeline_workers.stages import NAMES, Loss, Workers

BATCH, CONTEXT, CHUNKS = 16, 32, 4
EVERY = 5  # steps between two checkpoints
PATIENCE = 60.0  # seconds until a worker that was killed must be back


def layers(play: text.Text) -> nn.Sequential:
    """Nine layers, the same each time."""
    return model.transformer(len(play.alphabet), CONTEXT, width=48, heads=4, blocks=6, seed=0)


def batch(play: text.Text, step: int) -> tuple[Tensor, Tensor]:
    """The batch of a step, which is the same when the step is done again."""
    return text.batch(play.train, BATCH, CONTEXT, torch.Generator().manual_seed(step))


class Training:
    """The driver's side: a Pipe that is made again, and goes back to its checkpoint, after a loss."""

    def __init__(self, play: text.Text, schedule: str, folder: Path) -> None:
        self._play, self._schedule, self._folder = play, schedule, folder
        self._saved = 0  # the step that the checkpoint stands before
        self.pipe, self._optimizer = self._make()
        self.pipe.save_checkpoint(folder)

    def _make(self) -> tuple[weft.Pipe, object]:
        places = ["driver"] * 3 + ["stage1"] * 3 + ["stage2"] * 3
        placed = [
            layer if place == "driver" else weft.WithDevice(layer, f"{place}/cpu")
            for layer, place in zip(layers(self._play), places, strict=True)
        ]
        pipe = weft.Pipe(nn.Sequential(*placed), chunks=CHUNKS, schedule=self._schedule)
        return pipe, pipe.optimizer(torch.optim.AdamW, lr=3e-3)

    def step(self, number: int) -> float:
        """One step; its loss."""
        if number % EVERY == 0 and number != self._saved:
            self.pipe.save_checkpoint(self._folder)
            self._saved = number
        self._optimizer.zero_grad()
        loss = self.pipe.step(*batch(self._play, number), loss=Loss())
        self._optimizer.step()
        return loss.item()

    def return_to_checkpoint(self) -> int:
        """Makes the Pipe again once all workers are there; the step to go on with."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self.pipe.close()
                self.pipe, self._optimizer = self._make()
                self.pipe.load_checkpoint(self._folder)
                return self._saved
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


def train(
    workers: Workers, settings: argparse.Namespace, play: text.Text, folder: Path
) -> Training:
    """All steps, with a worker killed in the middle of some."""
    chance = random.Random(settings.seed)
    kills = set(chance.sample(range(settings.steps), settings.kills))
    training = Training(play, settings.schedule, folder)
    step = 0
    while step < settings.steps:
        if step in kills:
            kills.remove(step)
            moment, victim = chance.uniform(0, 0.05), chance.choice(NAMES)
            threading.Timer(moment, workers.kill, [victim]).start()
        try:
            loss = training.step(step)
        except RuntimeError as error:
            if not workers.start_the_killed_again():
                raise
            print(f"step {step}: {str(error).splitlines()[0]}", flush=True)
            step = training.return_to_checkpoint()
            print(f"goes on with step {step}", flush=True)
            continue
        if step % EVERY == 0:
            print(f"step {step}: loss {loss:.4f}", flush=True)
        step += 1
    return training


def alone(play: text.Text, steps: int) -> nn.Sequential:
    """The same micro-batches one after the other in this process."""
    plain, criterion = layers(play), Loss()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    for step in range(steps):
        inputs, wanted = batch(play, step)
        optimizer.zero_grad()
        for part, target in zip(inputs.chunk(CHUNKS), wanted.chunk(CHUNKS), strict=True):
            (criterion(plain(part), target) * (len(part) / BATCH)).backward()
        optimizer.step()
    return plain


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.pipeline_workers.train")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kills", type=int, default=3, help="steps in which a worker is killed")
    parser.add_argument("--schedule", choices=("gpipe", "1f1b"), default="1f1b")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    return parser.parse_args()


def meet_here() -> None:
    """The group meets at a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def main() -> int:
    """Runs the example and judges its result."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    settings, play = parse(), text.load()
    meet_here()
    with Workers() as workers, tempfile.TemporaryDirectory() as folder:
        weft.init_rpc("driver", rank=0, world_size=len(NAMES) + 1)
        training = train(workers, settings, play, Path(folder) / "checkpoint")
        found = training.pipe.state_dict()
        rpc.shutdown()
    expected = alone(play, settings.steps).state_dict()
    same = all(torch.equal(found[name], expected[name]) for name in expected)
    print(f"{settings.kills} kills; the parameters equal those of one process bit for bit: {same}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
