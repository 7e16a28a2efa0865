"""Starts a parameter server and two trainers, kills the server now and then, and starts it again.

python -m examples.parameter_server.launch --kills 3
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from examples.digits import data
from examples.parameter_server import server, trainer

TRAINERS = 2
LIMIT = 300.0  # seconds for everything
REQUIRED = 0.9  # of the held-out digits
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["examples.parameter_server.trainer"])


def start(function, *args) -> BaseProcess:
    process = FORKED.Process(target=function, args=args, daemon=True)
    process.start()
    return process


def accuracy_of(weights: dict[str, Tensor]) -> float:
    """The part of the held-out digits that a model with these weights gets right."""
    digits = data.load()
    _, held_out = data.split(digits.labels, seed=0)
    test = digits.take(held_out)
    model = server.make_model()
    model.load_state_dict(weights)
    return (model(test.images).argmax(1) == test.labels).float().mean().item()


def run(steps: int, kills: int, path: Path) -> bool:
    """Whether all steps of all trainers are in the weights exactly once, and the model is good."""
    # The Store outlives the server, so it is in a process that is not killed.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    serving = start(server.run, store.port, path)
    training = [start(trainer.run, i, TRAINERS, steps, store.port) for i in range(TRAINERS)]
    marks = [TRAINERS * steps * (i + 1) // (kills + 1) for i in range(kills)]
    end = time.monotonic() + LIMIT
    while any(process.is_alive() for process in training):
        if time.monotonic() > end:
            raise SystemExit(f"not ready within {LIMIT:.0f} s")
        done = store.add("steps", 0)
        if marks and done >= marks[0]:
            marks.pop(0)
            serving.kill()
            serving.join()
            print(f"after {done} steps the server is killed and started again", flush=True)
            serving = start(server.run, store.port, path)
        time.sleep(0.01)
    serving.kill()
    if any(process.exitcode for process in training):
        raise SystemExit("a trainer failed")
    state = torch.load(path, weights_only=True)
    # Adam counts its steps: each update that was applied, however often it was sent.
    applied = int(state["optimizer"]["state"][0]["step"])
    accuracy = accuracy_of(state["model"])
    print(
        f"{applied} of {TRAINERS * steps} steps were applied, {accuracy:.1%} of the digits are right"
    )
    return applied == TRAINERS * steps and accuracy >= REQUIRED


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="of each trainer")
    parser.add_argument("--kills", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good = run(args.steps, args.kills, Path(folder) / "weights.pt")
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
