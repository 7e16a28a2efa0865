"""Callbacks of futures that make further calls; a worker runs it."""

from __future__ import annotations


def echo(value):
    return value


def calls_in_callbacks(depth: int, width: int) -> list[int]:
    """Each future's callback makes a further synchronous call, `depth` deep."""
    import torch.distributed.rpc as rpc

    def again(level: int):
        def then(future):
            value = future.wait() + 1
            if level == 0:
                return value
            return rpc.rpc_async("worker1", echo, args=(value,)).then(again(level - 1)).wait()

        return then

    chains = [rpc.rpc_async("worker1", echo, args=(0,)).then(again(depth)) for _ in range(width)]
    return [chain.wait() for chain in chains]
