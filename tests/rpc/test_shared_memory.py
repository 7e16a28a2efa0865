"""Large tensors between two processes of one host: through shared memory, and nobody can tell."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from workers import Group, leave

PEER = "worker1"
LARGE = 1 << 18  # elements of float32: 1 MiB


def leave_if_there(graceful: bool) -> None:
    import torch.distributed.rpc as rpc

    if rpc.api._is_current_rpc_agent_set():
        leave(graceful)


def in_caller(body: Callable, *, kills: bool = False, **environment: str):
    """What `body` returns in a worker that has a peer, which it may kill."""
    with Group(2, environment, rpc_timeout=60) as (caller, peer):
        peer.start(leave)
        value = caller.call(body)
        caller.call(leave_if_there, graceful=not kills)
        if not kills:
            peer.result()
        return value


# In the peer.


def echo(*values):
    return values if len(values) > 1 else values[0]


def overwrite(tensor):
    """Writes to what it was given, and answers with the sums of before and after."""
    before = tensor.double().sum().item()
    tensor.mul_(0).add_(3)
    return before, tensor.double().sum().item()


def grow(tensor):
    size = tensor.numel()
    kept = tensor.clone()
    tensor.resize_(size * 3)
    assert tensor[:size].equal(kept)
    tensor.fill_(2)
    return tensor.sum().item()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def make(seed: int):
    import torch

    return torch.rand(LARGE, generator=torch.Generator().manual_seed(seed))


# In the caller.


def counters() -> dict[str, int]:
    import torch.distributed.rpc as rpc

    info = rpc.api._get_current_rpc_agent().get_debug_info()
    prefix = f"agent.peer.{PEER}."
    return {
        name: int(info[prefix + name])
        for name in ("bytes_sent", "arena_bytes_sent", "arena_fallbacks")
    }


def warm_up() -> None:
    """Both directions have agreed on their memory once something large went through it."""
    import torch
    import torch.distributed.rpc as rpc

    for _ in range(10):
        rpc.rpc_sync(PEER, echo, args=(torch.ones(LARGE),))


def many_kinds() -> int:
    import torch
    import torch.distributed.rpc as rpc

    warm_up()
    random = torch.Generator().manual_seed(1)
    base = torch.rand(64, 128, 33, generator=random)
    tensors = [
        base,
        base.permute(2, 0, 1),
        base[:, ::2],
        base.transpose(0, 1)[5:],
        torch.randint(0, 255, (300_000,), dtype=torch.uint8),
        torch.rand(50_000, dtype=torch.complex128, generator=random),
        torch.rand(100_001, generator=random).to(torch.bfloat16),
        torch.rand(200_000, generator=random) > 0.5,
        torch.ones(LARGE).to_sparse(),
        torch.quantize_per_tensor(torch.rand(100_000), 0.1, 3, torch.quint8),
        torch.empty(0),
        torch.tensor(5),
    ]
    for tensor in tensors:
        back = rpc.rpc_sync(PEER, echo, args=(tensor,))
        assert back.dtype == tensor.dtype and back.shape == tensor.shape
        if tensor.layout == torch.strided and not tensor.is_quantized:
            assert back.equal(tensor)
        else:
            assert (
                back - tensor if tensor.is_sparse else back.int_repr() - tensor.int_repr()
            ).to_dense().abs().sum() == 0
    several = rpc.rpc_sync(PEER, echo, args=tuple(tensors[:8]))
    assert all(a.equal(b) for a, b in zip(several, tensors, strict=False))
    leaf = torch.rand(LARGE, requires_grad=True)
    assert rpc.rpc_sync(PEER, torch.mul, args=(leaf, 2)).detach().equal(leaf.detach() * 2)
    text = os.urandom(3 << 20)
    assert rpc.rpc_sync(PEER, echo, args=(text,)) == text
    return counters()["arena_bytes_sent"]


def writes_stay_there() -> None:
    import torch
    import torch.distributed.rpc as rpc

    warm_up()
    ours = torch.ones(LARGE)
    assert rpc.rpc_sync(PEER, overwrite, args=(ours,)) == (LARGE, 3 * LARGE)
    assert ours.sum().item() == LARGE
    back = rpc.rpc_sync(PEER, echo, args=(ours,))
    back.zero_()
    assert ours.sum().item() == LARGE
    assert rpc.rpc_sync(PEER, grow, args=(ours,)) == 6 * LARGE
    back.resize_(10)
    back.resize_(2 * LARGE).fill_(1)
    assert back.untyped_storage().nbytes() == 8 * LARGE
    shared = rpc.rpc_sync(PEER, echo, args=(ours,)).share_memory_()
    assert shared.is_shared() and shared.equal(ours)
    assert rpc.rpc_sync(PEER, echo, args=(ours,)).numpy().sum() == LARGE


def outlive_shutdown() -> None:
    import torch.distributed.rpc as rpc

    warm_up()
    kept = [rpc.rpc_sync(PEER, make, args=(seed,)) for seed in range(20)]
    rpc.shutdown()
    for seed, tensor in enumerate(kept):
        assert tensor.equal(make(seed))
        tensor.fill_(0)


def after_a_kill() -> None:
    import torch.distributed.rpc as rpc

    warm_up()
    kept = [rpc.rpc_sync(PEER, make, args=(seed,)) for seed in range(5)]
    with pytest.raises(RuntimeError, match=PEER):
        rpc.rpc_sync(PEER, die)
    for seed, tensor in enumerate(kept):
        assert tensor.equal(make(seed))
        tensor.fill_(0)


def counted() -> dict[str, int]:
    import torch
    import torch.distributed.rpc as rpc

    warm_up()
    before = counters()
    for _ in range(4):
        rpc.rpc_sync(PEER, echo, args=(torch.ones(LARGE),))
    after = counters()
    return {name: after[name] - before[name] for name in after}


def held_by_the_peer() -> tuple[int, int]:
    """The peer keeps more than an arena holds; what does not fit goes through the socket."""
    import torch
    import torch.distributed.rpc as rpc

    warm_up()
    kept = [rpc.remote(PEER, echo, args=(torch.full((LARGE * 64,), float(i)),)) for i in range(20)]
    for i, one in enumerate(kept):
        assert rpc.rpc_sync(PEER, probe, args=(one,)) == (float(i), float(i))
    return counters()["arena_bytes_sent"], counters()["arena_fallbacks"]


def probe(reference) -> tuple[float, float]:
    tensor = reference.local_value()
    return tensor[0].item(), tensor[-1].item()


def test_every_kind_of_tensor_arrives_as_it_was():
    assert in_caller(many_kinds) > 10 << 20


def test_a_receivers_writes_are_its_own_and_its_tensors_can_grow():
    in_caller(writes_stay_there)


def test_tensors_outlive_the_group():
    in_caller(outlive_shutdown)


def test_tensors_outlive_a_killed_sender():
    in_caller(after_a_kill, kills=True)


def test_what_went_through_is_counted():
    went = in_caller(counted)
    assert went["arena_bytes_sent"] == 4 * 4 * LARGE
    assert went["arena_fallbacks"] == 0
    assert 0 < went["bytes_sent"] - went["arena_bytes_sent"] < 100_000


def test_a_full_arena_is_no_limit():
    sent, fallbacks = in_caller(held_by_the_peer)
    assert sent > 256 << 20
    assert fallbacks > 0


def test_it_can_be_switched_off():
    went = in_caller(counted, WEFT_SHARED_MEMORY="0")
    assert went["arena_bytes_sent"] == 0
    assert went["bytes_sent"] > 4 * 4 * LARGE
