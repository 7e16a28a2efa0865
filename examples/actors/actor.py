"""An actor: plays with the weights that it is given. The workers import this; they run no program."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from examples.actors.cart_pole import LIMIT, CartPoles

POLES = 16  # of one actor
DISCOUNT = 0.99


class Experience(NamedTuple):
    """What an actor has seen, done and got, one row for each step of a pole."""

    seen: Tensor
    right: Tensor  # the action: 1 or 0
    returns: Tensor  # the discounted rewards that followed
    falls: float  # of a pole, in LIMIT steps


def make_policy() -> nn.Module:
    """Logits of left and right."""
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))


@torch.no_grad()
def play(weights: dict[str, Tensor], seed: int) -> Experience:
    """What an actor does, when the learner calls it: LIMIT steps with these weights."""
    torch.set_num_threads(1)
    policy = make_policy()
    policy.load_state_dict(weights)
    generator = torch.Generator().manual_seed(seed)
    poles = CartPoles(POLES, generator)
    seen, right, ended = [], [], []
    for _ in range(LIMIT):
        seen.append(poles.state)
        chance = policy(poles.state).softmax(1)[:, 1]
        right.append(torch.rand(POLES, generator=generator) < chance)
        ended.append(poles.step(right[-1]))
    returns, later = [], torch.zeros(POLES)
    for end in reversed(ended):  # a reward of 1 for every step
        later = 1 + DISCOUNT * torch.where(end, 0.0, later)
        returns.insert(0, later)
    falls = torch.stack(ended[:-1]).sum().item() / POLES
    return Experience(torch.cat(seen), torch.cat(right).long(), torch.cat(returns), falls)
