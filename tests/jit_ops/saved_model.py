"""The Python server of saved_model.cpp: saves a model that calls it, publishes, and serves."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn

import weft


class Twice(nn.Module):
    """What is published."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Client(nn.Module):
    """What C++ loads: 2x + 2x + 2x, and the publisher's name."""

    def forward(self, x: Tensor) -> Tensor:
        like: list[Tensor] = []
        args: list[Any] = [x]
        later = torch.ops.weft.call_async("python", "twice", args, like)
        there = torch.ops.weft.remote("python", "twice", args, like)
        now = torch.ops.weft.call("python", "twice", args, like)
        return torch.jit._wait(later) + torch.ops.weft.fetch(there) + now


class Head(nn.Module):
    """What lives here, as a remote module."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return torch.tanh(self.linear(x)) * scale

    def forward_async(self, x: Tensor, scale: float = 1.0) -> Now:
        """As of a remote module, for the reference."""
        return Now(self(x, scale))


class Now:
    """A future that is over."""

    def __init__(self, value: Tensor) -> None:
        self.value = value

    def wait(self) -> Tensor:
        return self.value


class Hybrid(nn.Module):
    """A local layer before a remote one: what C++ loads with its RemoteModule."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.local = nn.Linear(3, 4)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.local(x))
        later = self.head.forward_async(hidden, scale=2.0)
        return self.head(hidden) + later.wait()


class Reference(nn.Module):
    """What must come out, from the same model in one process: the result and all gradients."""

    def __init__(self) -> None:
        super().__init__()
        plain = Hybrid(Head())
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        y = plain(x)
        y.square().sum().backward()
        head = plain.head.linear
        grads = (plain.local.weight.grad, head.weight.grad, head.bias.grad)
        names = ("x", "y", "dx", "dw", "dhead", "dbias")
        for name, value in zip(names, (x, y, x.grad, *grads), strict=True):
            self.register_buffer(name, value.detach())

    def forward(self, x: Tensor) -> Tensor:
        return x


def save(model: torch.jit.ScriptModule, path: str) -> None:
    """By rename, so that the other never reads half a file."""
    model.save(f"{path}.new")
    Path(f"{path}.new").rename(path)


def place_and_save(path: str) -> weft.RemoteModule:
    head = weft.RemoteModule("python/cpu", Head, name="head")
    head.remote_parameters()  # it is there: what comes seeds the generator that it was made with
    save(torch.jit.script(Hybrid(head)), f"{path}.hybrid")
    save(torch.jit.script(Reference()), f"{path}.reference")

    def gradients(context: int) -> list[Tensor]:
        return list(head.remote_grads(context).values())

    weft.publish("gradients", gradients)  # tells the other that the files are there, too
    return head


def main() -> None:
    """Saves, publishes, calls the other and serves it."""
    path = sys.argv[1]
    save(torch.jit.script(Client()), path)
    weft.publish("twice", torch.jit.script(Twice()))
    weft.init_rpc("python", rank=int(os.environ["RANK"]), world_size=2)
    kept = place_and_save(path)
    # A Python client of a C++ server.
    six = weft.call("cpp/scaled", torch.ones(2), kwargs={"by": 6})
    assert torch.equal(six, torch.full((2,), 6.0)), six
    assert torch.equal(rpc.rpc_sync("cpp", torch.add, (six, 1)), six + 1)
    try:
        rpc.rpc_sync("cpp", os.getpid)
    except RuntimeError as error:
        assert 'the request policy here is "script"' in str(error), error
    else:
        raise AssertionError("a C++ worker ran Python")
    rpc.shutdown()
    del kept  # it lived as long as its callers


if __name__ == "__main__":
    main()
