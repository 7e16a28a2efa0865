"""Entry: ``./dev bench cuda [--rounds 3] [--largest BYTES] [--ranks 2]``, on a machine with a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from bench import report
from bench.collectives.ranks import free_port, gather, slowest
from bench.cuda import pipelines, sharing, transfers


def _transfers(rounds: int, largest: int) -> list[report.Row]:
    found: dict[str, list[dict[str, float]]] = {"weft": [], "tensorpipe": []}
    for turn in range(rounds):
        for side in list(found) if turn % 2 == 0 else list(found)[::-1]:
            answers = gather(transfers.rank, 2, side, free_port(), largest)
            found[side].append(max(answers, key=len))
    return report.rows(found["weft"], found["tensorpipe"])


def _sharing(ranks: int, rounds: int, largest: int) -> list[report.Row]:
    answers = gather(sharing.rank, ranks, free_port(), rounds, largest)
    found = slowest(answers)
    return report.rows(found["weft"], found["gloo"])


def _pipelines(rounds: int) -> list[report.Row]:
    found = [[pipelines.run(width) for width in (64, 2048)] for _ in range(rounds)]
    ours = [{**small[0], **large[0]} for small, large in found]
    theirs = [{**small[1], **large[1]} for small, large in found]
    return report.rows(ours, theirs)


def main() -> None:
    """Measures all three, and prints and writes their tables."""
    parser = argparse.ArgumentParser(prog="./dev bench cuda", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--largest", type=int, default=1 << 30, help="bytes of the largest tensor")
    parser.add_argument("--ranks", type=int, default=2, help="that share a GPU")
    parser.add_argument("--only", choices=("transfers", "sharing", "pipelines"))
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device here")
    parts = {
        "transfers": (
            "tensorpipe",
            lambda: _transfers(arguments.rounds, arguments.largest),
        ),
        "sharing": (
            "gloo by hand",
            lambda: _sharing(arguments.ranks, arguments.rounds, arguments.largest),
        ),
        "pipelines": ("a plain loop", lambda: _pipelines(arguments.rounds)),
    }
    for name, (theirs, measure) in parts.items():
        if arguments.only in (None, name):
            rows = measure()
            print(report.table(rows, "weft", theirs, {"devices": torch.cuda.device_count()}))
            report.write(arguments.out, rows, "weft", theirs, {}, stem=f"cuda-{name}")


if __name__ == "__main__":
    main()
