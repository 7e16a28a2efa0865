"""Training of a pipeline whose stages are on workers, beside that of the same model in this process."""

from __future__ import annotations

import copy
import itertools
from typing import Any

STEPS = 6  # of one pipeline, unless something fails
CHUNKS = 4
COMBINATIONS = (("gpipe", "always"), ("1f1b", "except_last"), ("zb", "never"), ("1f1b", "never"))
_made = itertools.count()


class Training:
    """The first stage is here, the others are at the two peers: all in Python, or all in TorchScript."""

    def __init__(self, peers: list[str]) -> None:
        import torch
        from torch import nn

        import weft

        turn = next(_made)
        torch.manual_seed(turn)
        layers = [
            nn.Sequential(nn.Linear(8, 16), nn.Softplus()),
            nn.Linear(16, 16),
            nn.Sequential(nn.Softplus(), nn.Linear(16, 4)),
        ]
        self.plain = copy.deepcopy(nn.Sequential(*layers))
        self.loss, loss = nn.MSELoss(), nn.MSELoss()
        if turn % 2:
            layers, loss = [torch.jit.script(layer) for layer in layers], torch.jit.script(loss)
            layers[1] = weft.WithDevice(layers[1], f"{peers[0]}/cpu")
        else:
            layers[1] = weft.RemoteModule(f"{peers[0]}/cpu", nn.Linear, (16, 16))
        layers[2] = weft.WithDevice(layers[2], f"{peers[1]}/cpu")
        schedule, checkpoint = COMBINATIONS[turn // 2 % len(COMBINATIONS)]
        self.loss_there = loss
        self.pipe = weft.Pipe(nn.Sequential(*layers), CHUNKS, checkpoint, schedule=schedule)
        self.plain.load_state_dict(self.pipe.state_dict())
        self.optimizer = self.pipe.optimizer(torch.optim.SGD, lr=0.1)
        self.own = torch.optim.SGD(self.plain.parameters(), lr=0.1)
        self.left = STEPS

    def step(self, number: int) -> str | None:
        """A mini-batch of both; what is wrong with the loss or with the parameters after it."""
        import torch

        self.left -= 1
        torch.manual_seed(number)
        inputs, targets = torch.randn(16, 8), torch.randn(16, 4)
        self.optimizer.zero_grad()
        loss = self.pipe.step(inputs, targets, loss=self.loss_there)
        self.optimizer.step()
        self.own.zero_grad()
        wanted = self.loss(self.plain(inputs), targets)
        wanted.backward()
        self.own.step()
        if not torch.allclose(loss, wanted, atol=1e-4):
            return f"the loss is {loss}, not {wanted}"
        there, here = self.pipe.state_dict(), self.plain.state_dict()
        differ = [name for name in here if not torch.allclose(there[name], here[name], atol=1e-4)]
        return f"{differ} differ after a step" if differ else None

    def close(self) -> None:
        self.pipe.close()


def step(run: Any, number: int) -> str | None:
    """A mini-batch of the run's pipeline, of which there is another one after an error."""
    if not run.kept:
        run.kept.append(Training(run.peers))
    training: Training = run.kept[-1]
    try:
        why = training.step(number)
    except BaseException:
        run.kept.remove(training)
        training.close()
        raise
    if training.left == 0:
        run.kept.remove(training)
        training.close()
    return why
