"""Large tensors over TCP: half of each goes over a second connection, and nobody can tell."""

from __future__ import annotations

import pytest
from test_shared_memory import PEER, echo, in_caller

TCP = {"WEFT_UNIX_SOCKET": "0"}


# In the caller.


def bulk_bytes() -> int:
    import torch.distributed.rpc as rpc

    info = rpc.api._get_current_rpc_agent().get_debug_info()
    return int(info[f"agent.peer.{PEER}.bulk_bytes_sent"])


def shapes_there_and_back() -> int:
    import torch
    import torch.distributed.rpc as rpc

    random = torch.Generator().manual_seed(7)
    states = [
        [torch.rand(3, 1 << 20, generator=random)],
        [torch.rand(1 << 19, generator=random)[::2], torch.empty(0), torch.rand(5)],
        [torch.rand(count, generator=random) for count in (1, 300_000, 7, 1 << 20, 0, 20_000)],
        [torch.arange(1 << 18), torch.rand(1 << 19, generator=random).to(torch.bfloat16)],
    ]
    for _ in range(5):
        futures = [rpc.rpc_async(PEER, echo, args=(state,)) for state in states]
        for state, future in zip(states, futures, strict=True):
            for sent, got in zip(state, future.wait(), strict=True):
                assert got.dtype == sent.dtype
                assert torch.equal(got, sent)
    return bulk_bytes()


@pytest.mark.parametrize(("lanes", "used"), [("2", True), ("1", False)])
def test_tensors_arrive_as_they_were(lanes: str, used: bool):
    assert (in_caller(shapes_there_and_back, WEFT_TCP_CONNECTIONS=lanes, **TCP) > 1 << 20) == used


def test_unix_sockets_need_none():
    assert in_caller(shapes_there_and_back) == 0
