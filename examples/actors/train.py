"""A learner and its actors balance a pole: policy gradients with experience from several processes.

python -m weft.launch --workers 3 -m examples.actors.train

The program is the learner; the actors are plain workers. In every round the learner gives all actors
its weights, without a copy for each, and they play with them. An actor that is lost is missed until
it is started again (weft.launch --restarts 5).
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed.rpc as rpc
from torch import nn

import weft
from examples.actors.actor import Experience, make_policy, play
from examples.actors.cart_pole import LIMIT


def gather(actors: list[str], policy: nn.Module, round: int) -> list[Experience]:
    """A round of all actors that are there."""
    weights = weft.snapshot(policy.state_dict())
    calls = {
        actor: rpc.rpc_async(actor, play, (weights, round * len(actors) + number), timeout=60)
        for number, actor in enumerate(actors)
    }
    found = []
    for actor, call in calls.items():
        try:
            found.append(call.wait())
        except weft.RemoteError:  # a bug of ours
            raise
        except RuntimeError as error:
            print(f"round {round}: {actor} is missing: {str(error).splitlines()[0]}", flush=True)
    return found


def learn(policy: nn.Module, optimizer: torch.optim.Optimizer, parts: list[Experience]) -> None:
    """One step of gradient ascent (REINFORCE, Williams 1992) on everything that the actors saw."""
    seen, right, returns = (torch.cat(column) for column in list(zip(*parts, strict=True))[:3])
    advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
    chances = policy(seen).log_softmax(1).gather(1, right[:, None]).squeeze(1)
    optimizer.zero_grad()
    (-(chances * advantage).mean()).backward()
    optimizer.step()


def main() -> None:
    """The learner."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    size = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    weft.init_rpc("learner", rank=0, world_size=size)
    actors = [f"worker{rank}" for rank in range(1, size)]
    policy = make_policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    for round in range(args.rounds):
        parts = gather(actors, policy, round)
        if not parts:
            continue
        learn(policy, optimizer, parts)
        if round % 5 == 0 or round == args.rounds - 1:
            falls = sum(part.falls for part in parts) / len(parts)
            print(f"round {round}: a pole falls {falls:.1f} times in {LIMIT} steps", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()
