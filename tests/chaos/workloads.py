"""What workers do while something goes wrong.

Each workload is a function `operation(run, number)` that does one operation and returns what is wrong
with its result, or None; `run` is a Run (runs.py). What a callee executes it counts (ledger.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pipelines
from ledger import executed

TIMEOUT = 30.0  # seconds of a call: longer than any fault, so that no call ends by it
SIZES = (1, 1, 1, 100, 20_000, 400_000)  # numbers of elements: inline, shared memory, bulk


# What the callees run.


def serve(path: str, number: int, value: Any) -> Any:
    executed(path, number)
    return value + 1


def serve_nested(path: str, number: int, value: Any, further: str) -> Any:
    """Asks a third worker, which is the one that counts."""
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync(further, serve, args=(path, number, value), timeout=TIMEOUT)


def make(path: str, number: int, numel: int) -> Any:
    import torch

    executed(path, number)
    return torch.full((numel,), float(number))


def look(rref: Any) -> float:
    value = rref.to_here(timeout=TIMEOUT)
    return float(value[0])


def scale(path: str, number: int, value: Any) -> Any:
    executed(path, number)
    return value * float(number % 7 + 1)


# The operations.


def _tensor(number: int) -> Any:
    import torch

    return torch.full((SIZES[number % len(SIZES)],), float(number))


def _expect(result: Any, sent: Any) -> str | None:
    if result.shape == sent.shape and bool((result == sent + 1).all()):
        return None
    return f"{sent[0]} of {tuple(sent.shape)} came back as {result[:4]} of {tuple(result.shape)}"


def call(run: Any, number: int) -> str | None:
    import torch.distributed.rpc as rpc

    sent, to = _tensor(number), run.peers[0]
    if number % 3 == 0:
        result = rpc.rpc_sync(to, serve, args=(run.ledger, number, sent), timeout=TIMEOUT)
    else:
        result = rpc.rpc_async(to, serve, args=(run.ledger, number, sent), timeout=TIMEOUT).wait()
    return _expect(result, sent)


def nested(run: Any, number: int) -> str | None:
    import torch.distributed.rpc as rpc

    sent, (to, further) = _tensor(number), run.peers
    args = (run.ledger, number, sent, further)
    return _expect(rpc.rpc_async(to, serve_nested, args=args, timeout=TIMEOUT).wait(), sent)


def rref(run: Any, number: int) -> str | None:
    import torch.distributed.rpc as rpc

    numel, (to, further) = SIZES[number % len(SIZES)], run.peers
    made = rpc.remote(to, make, args=(run.ledger, number, numel), timeout=TIMEOUT)
    if number % 2:
        seen = float(made.to_here(timeout=TIMEOUT)[0])
    else:
        seen = rpc.rpc_sync(further, look, args=(made,), timeout=TIMEOUT)
    return None if seen == number else f"{number} came back as {seen}"


def autograd(run: Any, number: int) -> str | None:
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    x = torch.ones(SIZES[number % len(SIZES)], requires_grad=True)
    with dist_autograd.context() as context:
        there = rpc.rpc_sync(run.peers[0], scale, args=(run.ledger, number, x), timeout=TIMEOUT)
        dist_autograd.backward(context, [(there * 2).sum()])
        gradient = dist_autograd.get_gradients(context)[x]
    wanted = 2.0 * (number % 7 + 1)
    return None if bool((gradient == wanted).all()) else f"gradient {gradient[:4]}, not {wanted}"


def published(run: Any, number: int) -> str | None:
    import weft

    sent = _tensor(number)
    return _expect(weft.call(f"{run.peers[0]}/chaos", sent, timeout=TIMEOUT), sent)


def pipe(run: Any, number: int) -> str | None:
    """Forward and backward of a pipeline in this process, against the same without it."""
    import torch
    from torch import nn

    import weft

    torch.manual_seed(number)
    plain = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    batch = torch.randn(16, 8)
    found = []
    for model in (plain, weft.Pipe(plain, chunks=1 + number % 4)):
        plain.zero_grad()
        output = model(batch)
        output = output if model is plain else output.local_value()
        output.square().sum().backward()
        found.append([output.detach(), *(p.grad.clone() for p in plain.parameters())])
    same = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*found, strict=True))
    return None if same else "the pipeline's output or gradients differ"


OPERATIONS: dict[str, Callable[[Any, int], str | None]] = {
    "call": call,
    "nested": nested,
    "rref": rref,
    "autograd": autograd,
    "published": published,
    "pipeline": pipelines.step,
    "pipe": pipe,
}
COUNTED = ("call", "nested", "rref", "autograd")
THREADS = {"pipe": 1, "pipeline": 1}  # torch.manual_seed is the process's
