"""Messages beyond what the receiver takes: the call fails, and nothing else does."""

from __future__ import annotations

import pytest
from workers import Group


def send_zeros(to: str, numel: int) -> str:
    """What became of a call with so many zeros."""
    import torch
    import torch.distributed.rpc as rpc

    try:
        return str(rpc.rpc_sync(to, torch.sum, args=(torch.zeros(numel),)).item())
    except RuntimeError as error:
        return str(error)


def fetch_zeros(to: str, numel: int) -> str:
    """What became of a call whose answer has so many zeros."""
    import torch
    import torch.distributed.rpc as rpc

    try:
        return str(rpc.rpc_sync(to, torch.zeros, args=([numel],)).sum().item())
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("shared", ["0", "1"])
def test_what_exceeds_the_receivers_limit_fails_alone(shared):
    small = {"max_message_bytes": 1_000_000}
    with Group(2, {"WEFT_SHARED_MEMORY": shared}, per_rank=[{}, small]) as group:
        for _ in range(3):
            text = group[0].call(send_zeros, "worker1", 1_000_000)
            assert "worker 'worker1'" in text and "the limit here is 1000000" in text, text
            assert "max_message_bytes" in text and "RESOURCE_EXHAUSTED" in text, text
            assert group[0].call(send_zeros, "worker1", 1_000) == "0.0"
            text = group[1].call(fetch_zeros, "worker0", 1_000_000)
            assert "max_message_bytes" in text and "the limit here is 1000000" in text, text
            assert "RESOURCE_EXHAUSTED" in text, text
            assert group[1].call(fetch_zeros, "worker0", 1_000) == "0.0"
            # The answer is beyond the limit of the worker that makes it.
            text = group[0].call(fetch_zeros, "worker1", 1_000_000)
            assert "max_message_bytes" in text and "RESOURCE_EXHAUSTED" in text, text
        assert "is lost" not in group.outputs() and "is cut off" not in group.outputs()
        group.shutdown()
