"""``python -m weft.worker NAME``: a worker that serves what others ask of it, and runs no program.

It joins the group that MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE say, and leaves when the others
do. It imports modules from the folder that it is started in.
"""

from __future__ import annotations

import argparse
import os
import sys

import torch.distributed.rpc as rpc
from torch.distributed import DistNetworkError

import weft


def parse(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line; the environment, as torchrun sets it, gives the defaults."""
    parser = argparse.ArgumentParser(
        prog="python -m weft.worker",
        description="A worker that serves what others ask of it. MASTER_ADDR and MASTER_PORT say "
        "where the group meets.",
    )
    parser.add_argument("name", nargs="?", help="its name; by default worker and its rank")
    parser.add_argument("--rank", type=int, default=os.environ.get("RANK"), help="default $RANK")
    parser.add_argument(
        "--world-size", type=int, default=os.environ.get("WORLD_SIZE"), help="default $WORLD_SIZE"
    )
    found = parser.parse_args(arguments)
    if found.rank is None or found.world_size is None:
        parser.error("give --rank and --world-size, or set RANK and WORLD_SIZE")
    return found


def main(arguments: list[str]) -> None:
    """Serves until the whole group shuts down."""
    given = parse(arguments)
    name = given.name or f"worker{given.rank}"
    weft.init_rpc(name, rank=given.rank, world_size=given.world_size)
    try:
        rpc.shutdown(timeout=0)
    except DistNetworkError:
        if __name__ != "__main__":
            raise
        # The driver's own error tells why; a traceback of this file would hide it.
        sys.exit(f"weft.worker: {name} ends: the driver has ended without rpc.shutdown")


if __name__ == "__main__":
    main(sys.argv[1:])
