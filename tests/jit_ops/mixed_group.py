"""The Python worker of mixed_group_test.cpp: rank 2, beside two C++ processes. Ends as the test tells it."""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor, nn

import weft


class Scorer(nn.Module):
    """What C++ calls here: scripted, and once more as plain Python."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((2, 3), 0.5))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return torch.tanh(x @ self.w) * scale


def die_in_the_call() -> int:
    """The caller's call is under way then."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def refused(call, says: str) -> None:
    """`call` must fail with a text that says this."""
    try:
        call()
    except (RuntimeError, TypeError) as error:
        assert says in str(error), f"{says!r} is not in: {error}"
    else:
        raise AssertionError(f"nothing failed: {says}")


def ask_the_server() -> None:
    """Python as the client of a C++ server."""
    x = torch.arange(4.0).reshape(2, 2)
    local = Scorer()
    assert torch.equal(weft.call("server/encoder", x), local(x))
    assert weft.call("server/encoder", [1, 2], method="total") == 3.0
    named = weft.call("server/encoder", {"a": x}, method="named")
    assert torch.equal(named[0], x) and named[1] == 1, named
    # Gradients through the C++ server, to the last bit.
    mine, here = x.clone().requires_grad_(), x.clone().requires_grad_()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [weft.call("server/encoder", mine).square().sum()])
        through = dist_autograd.get_gradients(context)[mine]
    local(here).square().sum().backward()
    assert torch.equal(through, here.grad)
    # What a C++ process refuses.
    policy = 'the request policy here is "script"'
    refused(lambda: rpc.rpc_sync("server", os.getpid), policy)
    refused(lambda: rpc.remote("server", os.getpid).to_here(), policy)
    refused(lambda: weft.RemoteModule("server", nn.Linear, (2, 2))(x), policy)
    refused(lambda: weft.call("server/decoder", x), "'decoder' is not published here")
    refused(lambda: weft.call("server/encoder@3", x), "version 3 is not published")
    refused(lambda: weft.call("server/encoder", "text"), "must be Tensor, got str")
    refused(lambda: weft.call("server/encoder", x, kwargs={"by": 1}), "has no argument 'by'")
    refused(lambda: weft.call("server/encoder", x.long()), "dtype")
    assert rpc.rpc_sync("server", torch.add, (1, 2)) == 3


def sum_up() -> None:
    """A collective among C++ and Python ranks, by its operator."""
    dist.init_process_group(
        "weft", init_method=f"file://{sys.argv[1]}.pg", rank=int(os.environ["RANK"]), world_size=3
    )
    one = torch.full((2,), 1.0 + dist.get_rank(), requires_grad=True)
    total = torch.ops.weft.all_reduce(one, "sum", "0")
    assert torch.equal(total, torch.full((2,), 6.0))
    total.sum().backward()
    assert torch.equal(one.grad, torch.full((2,), 3.0))
    dist.destroy_process_group()


def main() -> None:
    """Meets the others, asks, and serves until the client kills it."""
    weft.publish("scorer", torch.jit.script(Scorer()))
    weft.publish("plain", Scorer())
    weft.publish("die", die_in_the_call)
    weft.init_rpc(
        "python",
        rank=int(os.environ["RANK"]),
        world_size=3,
        rpc_backend_options=weft.RpcBackendOptions(init_method=f"file://{sys.argv[1]}"),
    )
    sum_up()
    ask_the_server()
    weft.publish("asked", Scorer())  # tells the client that all went well here
    signal.alarm(60)  # should the client not end this worker
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
