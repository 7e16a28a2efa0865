"""What one run of the example is made of, and its command line."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

SERVER = "server"
TRAINERS = ("trainer1", "trainer2")
EVALUATOR = "evaluator"
#: The name of every worker, by rank.
WORKERS = (SERVER, *TRAINERS, EVALUATOR)


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings that all four processes share."""

    backend: str
    out: Path
    short: bool
    seed: int
    epochs: int
    threshold: float
    ddp: bool = (
        False  # the front ends' gradients go through a process group, not through the server
    )
    batch: int = 32  # images per trainer and step
    lr: float = 0.1
    momentum: float = 0.9
    deadline: float = 240.0  # seconds; nobody waits longer than this for anything

    @property
    def cooldown(self) -> int:
        """The first epoch of the last quarter, which runs with a tenth of the learning rate."""
        return self.epochs * 3 // 4


def parse(argv: list[str] | None, program: str) -> Config:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("WEFT", "TENSORPIPE"), default="WEFT")
    parser.add_argument("--out", type=Path, default=Path("digits-results"), help="results folder")
    parser.add_argument("--short", action="store_true", help="few epochs, lower threshold")
    parser.add_argument("--ddp", action="store_true", help="front ends under DDP, beside the RPC")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="20; 6 with --short")
    parser.add_argument("--threshold", type=float, help="0.97; 0.90 with --short")
    args = parser.parse_args(argv)
    epochs, threshold = (6, 0.90) if args.short else (20, 0.97)
    epochs = epochs if args.epochs is None else args.epochs
    if epochs < 1:
        parser.error("--epochs must be at least 1")
    return Config(
        backend=args.backend,
        out=args.out.resolve(),
        short=args.short,
        seed=args.seed,
        epochs=epochs,
        threshold=threshold if args.threshold is None else args.threshold,
        ddp=args.ddp,
    )


def to_arguments(config: Config) -> list[str]:
    """The command line that `parse` turns back into this configuration."""
    line = ["--backend", config.backend, "--out", str(config.out), "--seed", str(config.seed)]
    line += ["--epochs", str(config.epochs), "--threshold", str(config.threshold)]
    line += ["--ddp"] if config.ddp else []
    return [*line, "--short"] if config.short else line
