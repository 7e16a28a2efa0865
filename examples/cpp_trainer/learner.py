"""A Python learner that serves a scripted policy to C++ actors and learns from their episodes.

The policy is TorchScript and runs without the GIL; learning is plain Python (REINFORCE, Williams 1992).
Actors see each other's progress at once, because the served module is the one that learns.
"""

from __future__ import annotations

import os
import threading

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

import weft

CELLS = 9
DISCOUNT = 0.95


class Policy(nn.Module):
    """Logits for left and right from the cell the actor is in."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(CELLS, 2, bias=False)
        nn.init.zeros_(self.logits.weight)

    def forward(self, seen: Tensor) -> Tensor:
        return self.logits(seen)

    @torch.jit.export
    def act(self, seen: Tensor) -> int:
        """Draws an action."""
        with torch.no_grad():
            chances = torch.softmax(self.logits(seen), 0)
            return int(torch.multinomial(chances, 1).item())


class Learner:
    """Owns the optimiser; episodes are learnt one at a time."""

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy
        self._optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
        self._lock = threading.Lock()

    def learn(self, seen: Tensor, actions: Tensor, rewards: Tensor) -> float:
        """One step of gradient ascent on the episode's discounted return."""
        returns = torch.zeros(len(rewards))
        later = 0.0
        for i in reversed(range(len(rewards))):
            later = float(rewards[i]) + DISCOUNT * later
            returns[i] = later
        with self._lock:
            self._optimizer.zero_grad()
            chances = torch.log_softmax(self._policy(seen), 1)
            loss = -(chances.gather(1, actions[:, None]).squeeze(1) * returns).sum()
            loss.backward()
            self._optimizer.step()
        return float(loss.detach())


def main() -> None:
    """Serves until the actors are done."""
    torch.manual_seed(0)
    policy = torch.jit.script(Policy())
    weft.publish("policy", policy)
    weft.publish("learn", Learner(policy).learn)
    weft.init_rpc("learner", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    rpc.shutdown()
    print("chance of going right, cell by cell:")
    with torch.no_grad():
        print(torch.softmax(policy(torch.eye(CELLS)), 1)[:, 1].numpy().round(2))


if __name__ == "__main__":
    main()
