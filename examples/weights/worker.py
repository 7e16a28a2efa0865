"""One learner gives its weights to several actors of the same host, without copying them.

Rank 0 is the learner, the others are actors. Start them in as many shells, in any order:

    python -m examples.weights.worker --rank 0 --world-size 3
    python -m examples.weights.worker --rank 1 --world-size 3
    python -m examples.weights.worker --rank 2 --world-size 3
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed.rpc as rpc

import weft

ROUNDS = 5
WEIGHTS = 1 << 20  # 4 MiB of float32

_weights = torch.empty(0)


def load(weights: torch.Tensor) -> float:
    """What an actor does with new weights: keep them, and say what they are like."""
    global _weights
    _weights = weights
    return _weights.mean().item()


def teach(actors: list[str]) -> None:
    """What the learner does: every round a new value, the same to all."""
    # Shared memory is agreed on with the first large tensor that goes to a peer.
    for actor in actors * 2:
        rpc.rpc_sync(actor, load, args=(torch.zeros(WEIGHTS),))
    model = torch.zeros(WEIGHTS)
    for round in range(1, ROUNDS + 1):
        model += 1  # a step of training
        weights = weft.snapshot(model)  # a state_dict() would do as well
        answers = [rpc.rpc_async(actor, load, args=(weights,)) for actor in actors]
        if any(answer.wait() != round for answer in answers):
            raise AssertionError(f"round {round}: an actor has other weights")
    info = rpc.api._get_current_rpc_agent().get_debug_info()
    saved = int(info["agent.zero_copy_bytes_sent"]) >> 20
    print(f"{ROUNDS} rounds, {len(actors)} actors, {saved} MiB went without a copy")


def main() -> None:
    """One worker, by --rank."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, default=3)
    args = parser.parse_args()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29557")
    weft.init_rpc(f"worker{args.rank}", rank=args.rank, world_size=args.world_size)
    if args.rank == 0:
        teach([f"worker{rank}" for rank in range(1, args.world_size)])
    rpc.shutdown(timeout=60)  # actors serve from in here


if __name__ == "__main__":
    main()
