"""Views that share a storage, and results that torch cannot take: what docs/guide/rpc.md says of them."""

from __future__ import annotations

import pytest
from module_group import module_group

group = module_group(2, rpc_timeout=60)


def do_views_share(base, part) -> tuple[bool, list]:
    """Whether a write to the one is seen in the other, and what came."""
    came = part.tolist()
    base.fill_(7)
    return part[0].item() == 7, came


def views_of_one_storage(to: str, numel: int) -> tuple[bool, list, list]:
    import torch
    import torch.distributed.rpc as rpc

    base = torch.arange(float(numel))
    sent = base[1:]
    shared, came = rpc.rpc_sync(to, do_views_share, args=(base, sent))
    assert base[0] == 0  # nor does the receiver's write come here
    return shared, came, sent.tolist()


@pytest.mark.parametrize("numel", [4, 50_000], ids=["inline", "large"])
@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_views_of_one_storage_arrive_apart(group, to, numel):
    shared, came, sent = group[0].call(views_of_one_storage, to, numel)
    assert came == sent
    assert not shared


def csr_result():
    import torch

    return torch.eye(4).to_sparse_csr()


def call_csr_result() -> str:
    import torch.distributed.rpc as rpc

    try:
        return str(rpc.rpc_sync("worker1", csr_result, timeout=10).layout)
    except RuntimeError as error:
        return f"RuntimeError: {error}"


def test_a_compressed_sparse_result_fails_in_words(group):
    """torch asks the result for a storage; should it learn not to, docs/guide/rpc.md changes."""
    text = group[0].call(call_csr_result)
    assert text.startswith("RuntimeError") and "storage" in text.lower()
