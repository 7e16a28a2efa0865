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


def main() -> None:
    """Saves by rename, so that the other never reads half a file."""
    path = Path(sys.argv[1])
    torch.jit.script(Client()).save(f"{path}.new")
    Path(f"{path}.new").rename(path)
    weft.publish("twice", torch.jit.script(Twice()))
    weft.init_rpc("python", rank=int(os.environ["RANK"]), world_size=2, request_policy="script")
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


if __name__ == "__main__":
    main()
