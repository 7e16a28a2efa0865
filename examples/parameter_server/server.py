"""The parameter server: has the weights, applies gradients, and is told the same twice at most."""

from __future__ import annotations

import threading
from pathlib import Path

import torch
from torch import Tensor, nn

import weft


def make_model() -> nn.Module:
    """The same on all workers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class ParameterServer:
    """The weights, and the last step of each trainer that is in them.

    Every update is in the file before it is answered. So an update that was answered outlives a kill,
    and one that was not is sent again by its trainer: it is applied then, or was already.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._model = make_model()
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.005)
        self._steps: dict[int, int] = {}
        if path.exists():
            state = torch.load(path, weights_only=True)
            self._steps = state["steps"]
            self._model.load_state_dict(state["model"])
            self._optimizer.load_state_dict(state["optimizer"])

    def push(self, trainer: int, step: int, gradients: list[Tensor]) -> list[Tensor]:
        """Applies a trainer's gradients, unless they are in already; the weights after it."""
        with self._lock:
            if gradients and step > self._steps.get(trainer, -1):
                for parameter, gradient in zip(self._model.parameters(), gradients, strict=True):
                    parameter.grad = gradient
                self._optimizer.step()
                self._steps[trainer] = step
                self._save()
            return [parameter.detach().clone() for parameter in self._model.parameters()]

    def _save(self) -> None:
        state = {
            "steps": self._steps,
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, self._path.with_suffix(".new"))
        self._path.with_suffix(".new").replace(self._path)  # one or the other, never half


def run(port: int, path: Path) -> None:
    """One life of the server: what it publishes before it joins is there for the first caller."""
    torch.set_num_threads(1)
    weft.publish("push", ParameterServer(path).push)
    weft.init_rpc("server", rank=1, init_method=f"tcp://127.0.0.1:{port}")
    threading.Event().wait()  # serves until it is killed
