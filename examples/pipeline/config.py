"""What one run is made of, and its command line."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of a run. The same ones learn the same with a pipe and without."""

    plain: bool
    partitions: int
    chunks: int
    checkpoint: str
    script: bool
    steps: int
    seed: int
    timeline: Path | None
    batch: int = 32
    context: int = 64  # characters that the model sees
    width: int = 96
    heads: int = 4
    blocks: int = 6
    lr: float = 3e-3
    warm_up: int = 20  # steps until the learning rate is reached


def parse(argv: list[str] | None) -> Config:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.pipeline.train",
        description="Trains a character-level transformer on a play, through a pipeline.",
    )
    parser.add_argument("--plain", action="store_true", help="the same without a pipe")
    parser.add_argument("--partitions", type=int, default=2, metavar="N", help="2 to 4; default 2")
    parser.add_argument(
        "--chunks", type=int, default=4, metavar="M", help="micro-batches; default 4"
    )
    modes = ("always", "except_last", "never")
    parser.add_argument("--checkpoint", choices=modes, default="never", help="default never")
    parser.add_argument("--script", action="store_true", help="TorchScript layers")
    parser.add_argument("--steps", type=int, default=300, help="default 300")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeline", type=Path, help="draws a step into this .svg (or .json)")
    args = parser.parse_args(argv)
    if not 2 <= args.partitions <= 4:
        parser.error("--partitions must be 2, 3 or 4")
    if args.chunks < 1:
        parser.error("--chunks must be at least 1")
    if args.steps < 1:
        parser.error("--steps must be at least 1")
    if args.timeline is not None and args.plain:
        parser.error("--timeline needs a pipe, so not --plain")
    if args.timeline is not None and args.timeline.suffix not in (".svg", ".json"):
        parser.error("--timeline takes a .svg or .json file")
    return Config(**vars(args))
