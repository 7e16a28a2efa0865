"""Tensors of weft.empty: sent without a copy, and nobody can tell but by the counters."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle

import pytest
from test_shared_memory import PEER, die, echo, in_caller, overwrite, warm_up

LARGE = 1 << 20  # elements of float32: 4 MiB


# In the caller.


def sent_without_copy() -> int:
    import torch.distributed.rpc as rpc

    info = rpc.api._get_current_rpc_agent().get_debug_info()
    return int(info["agent.zero_copy_bytes_sent"])


def peer_sent_without_copy() -> int:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync(PEER, sent_without_copy)


def _filled(*size: int, dtype=None):
    import torch

    import weft

    tensor = weft.empty(*size, dtype=dtype)
    return tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape))


def _call(function, *args):
    """The answer, and the bytes that went there without a copy."""
    import torch.distributed.rpc as rpc

    before = sent_without_copy()
    return rpc.rpc_sync(PEER, function, args=args), sent_without_copy() - before


def total(tensor) -> float:
    return tensor.double().sum().item()


def values_and_counts() -> None:
    import torch

    warm_up()
    ours = _filled(LARGE)
    expected = torch.arange(LARGE).double().sum().item()
    for _ in range(3):
        assert _call(total, ours) == (expected, 4 * LARGE)
    # Through NumPy, which torch's own counter of writes does not see.
    version = ours._version
    ours.numpy()[7] += 1
    assert ours._version == version
    assert _call(total, ours) == (expected + 1, 0)
    fresh = _filled(1024, 1024, dtype=torch.float64)
    back, count = _call(echo, fresh.t())
    assert back.equal(fresh.t()) and back.stride() == fresh.t().stride()
    assert count == fresh.nbytes


def writes_stay_where_they_are() -> None:
    import torch.distributed.rpc as rpc

    warm_up()
    ours = _filled(LARGE)
    before = total(ours)
    assert _call(overwrite, ours) == ((before, 3.0 * LARGE), 4 * LARGE)
    assert total(ours) == before
    kept = rpc.remote(PEER, echo, args=(ours,))
    kept.to_here()
    ours.zero_()
    assert rpc.rpc_sync(PEER, total_of, args=(kept,)) == before
    assert _call(total, ours) == (0.0, 0)


def total_of(reference) -> float:
    return total(reference.local_value())


def parts() -> None:
    import torch

    warm_up()
    ours = _filled(4, LARGE)
    back, count = _call(echo, ours[1:3], ours[3], ours[1:3])
    assert all(a.equal(b) for a, b in zip(back, (ours[1:3], ours[3], ours[1:3]), strict=True))
    assert count == 5 * 4 * LARGE
    other = _filled(LARGE)
    back, count = _call(echo, other[: LARGE // 8])
    assert back.equal(other[: LARGE // 8]) and count == 0
    columns = other.view(1024, 1024)[:, ::2]  # gaps: it is made dense first
    back, count = _call(echo, columns)
    assert back.equal(columns) and count == 0
    mixed = [_filled(LARGE), torch.ones(LARGE), torch.tensor(3), _filled(100)]
    back, count = _call(echo, *mixed)
    assert all(a.equal(b) for a, b in zip(back, mixed, strict=True))
    assert count == 4 * LARGE


def a_state(seed: int) -> dict:
    """Two large tensors, two that share memory, and what a state may hold beside tensors."""
    import torch

    torch.manual_seed(seed)
    large, tied = torch.randn(512, 512), torch.randn(1 << 15)
    return {
        "large": torch.nn.Parameter(large.t()),
        "half": torch.randn(300, 200, dtype=torch.bfloat16),
        "complex": torch.randn(200, 100, dtype=torch.complex64).conj(),
        "tied": tied,
        "tied again": tied.detach(),
        "small": torch.randn(3),
        "sparse": torch.eye(200).to_sparse(),
        "deeper": [torch.ones(1 << 15, dtype=torch.bool), (None, "text", 3)],
    }


def snapshots() -> None:
    import torch

    import weft

    warm_up()
    state = a_state(1)
    taken = weft.snapshot(state)
    assert list(taken) == list(state)
    assert taken["tied"] is taken["tied again"]
    assert taken["deeper"][1] == (None, "text", 3)
    exported = ["large", "half", "complex", "tied"]
    large = sum(state[name].nbytes for name in exported)
    for _ in range(2):
        back, count = _call(echo, taken)
        assert count == large
        for name, tensor in state.items():
            if isinstance(tensor, torch.Tensor):
                assert torch.equal(back[name].to_dense(), tensor.to_dense()), name
                assert not taken[name].requires_grad
        assert torch.equal(back["deeper"][0], state["deeper"][0])
    # The original's writes are not the snapshot's, and one tensor's not its neighbour's.
    with torch.no_grad():
        state["large"].zero_()
    assert not taken["large"].equal(state["large"])
    taken["half"].zero_()
    back, count = _call(echo, taken)
    assert not back["half"].any() and torch.equal(back["large"], taken["large"])
    assert count == large - taken["half"].nbytes


def snapshot_for_all() -> None:
    """More parts than descriptors may travel in one message: they are of one file."""
    import torch

    import weft

    warm_up()
    state = {str(i): torch.full((1 << 15,), float(i)) for i in range(100)}
    taken = weft.snapshot(state)
    for _ in range(2):
        there = peer_sent_without_copy()
        back, count = _call(echo, taken)
        # Sent back they are still of one file.
        assert count == peer_sent_without_copy() - there == 100 * (1 << 17)
        assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def there_and_back() -> int:
    import torch.distributed.rpc as rpc

    warm_up()
    ours = _filled(LARGE)
    before = peer_sent_without_copy()
    back = rpc.rpc_sync(PEER, echo, args=(ours,))
    assert back.equal(ours) and back.data_ptr() != ours.data_ptr()
    assert peer_sent_without_copy() - before == 4 * LARGE
    back.add_(1)
    assert not back.equal(ours)
    result, _ = _call(made_by_weft_empty, LARGE)
    assert total(result) == 2 * LARGE
    return peer_sent_without_copy() - before


def made_by_weft_empty(size: int):
    import weft

    return weft.empty(size).fill_(2)


def as_any_tensor() -> None:
    import numpy as np
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    import weft

    warm_up()
    ours = _filled(LARGE)
    rpc.rpc_sync(PEER, total, args=(ours,))
    assert pickle.loads(pickle.dumps(ours)).equal(ours)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    assert torch.load(file).equal(ours)
    assert np.array_equal(ours.numpy(), np.arange(LARGE, dtype=np.float32))
    shared = ours.clone().share_memory_()
    assert shared.equal(ours)
    copy = _filled(LARGE)
    assert copy.share_memory_().is_shared() and copy.equal(ours)
    grown = _filled(LARGE).resize_(3 * LARGE)
    assert grown[:LARGE].equal(ours)
    assert rpc.rpc_sync(PEER, total, args=(grown.fill_(1),)) == 3 * LARGE
    leaf = weft.empty(LARGE, requires_grad=True)
    assert leaf.requires_grad and leaf.is_leaf
    with torch.no_grad():
        leaf.fill_(2)
    with dist_autograd.context() as context:
        answer = rpc.rpc_sync(PEER, torch.mul, args=(leaf, leaf))
        dist_autograd.backward(context, [answer.sum()])
        gradient = dist_autograd.get_gradients(context)[leaf]
    assert gradient.equal(torch.full((LARGE,), 4.0))


def after_a_fork() -> None:
    import torch.distributed.rpc as rpc

    warm_up()
    ours = _filled(LARGE)
    expected = total(ours)
    child = os.fork()
    if child == 0:
        ours.numpy()[:] = 0
        os._exit(0)
    os.waitpid(child, 0)
    assert _call(total, ours) == (expected, 4 * LARGE)
    ours.add_(1)
    assert _call(total, ours) == (expected + LARGE, 0)
    assert rpc.rpc_sync(PEER, total, args=(ours,)) == expected + LARGE


def outlives_everybody() -> None:
    """The peer dies; its mappings are its own, and what it sent stays."""
    import torch.distributed.rpc as rpc

    warm_up()
    ours = _filled(LARGE)
    back = rpc.rpc_sync(PEER, echo, args=(ours,))
    made = rpc.rpc_sync(PEER, made_by_weft_empty, args=(LARGE,))
    with pytest.raises(RuntimeError, match=PEER):
        rpc.rpc_sync(PEER, die)
    rpc.shutdown(graceful=False)
    assert back.equal(ours) and total(made) == 2 * LARGE
    made.add_(1)
    del ours, back, made
    assert open_blocks() == 0


def open_blocks() -> int:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    with open("/proc/self/maps") as maps:
        return sum("weft-export" in line for line in [*links, *maps])


def without_shared_memory() -> None:
    warm_up()
    ours = _filled(LARGE)
    for i in range(3):
        ours.fill_(i)
        assert _call(total, ours) == (float(i * LARGE), 0)


def to_itself() -> None:
    import torch.distributed.rpc as rpc

    ours = _filled(LARGE)
    name = rpc.get_worker_info().name
    assert rpc.rpc_sync(name, overwrite, args=(ours,))[1] == 3 * LARGE
    assert ours.equal(_filled(LARGE))


def test_values_arrive_and_every_write_is_noticed():
    in_caller(values_and_counts)


def test_writes_stay_where_they_are():
    in_caller(writes_stay_where_they_are)


def test_parts_of_it():
    in_caller(parts)


def test_a_snapshot_is_copied_once():
    in_caller(snapshots)


def test_a_snapshot_of_many_tensors():
    in_caller(snapshot_for_all)


@dataclasses.dataclass
class Batch:
    tensor: object


def test_what_a_snapshot_does_not_look_into_is_refused():
    import torch

    import weft

    with pytest.raises(TypeError, match=r"state_dict\(\) of the Linear"):
        weft.snapshot({"model": torch.nn.Linear(2, 2)})
    for container in (Batch(torch.ones(2)), {torch.ones(2)}):
        with pytest.raises(TypeError, match=f"not in a {type(container).__name__}"):
            weft.snapshot([container])
    assert weft.snapshot([]) == [] and weft.snapshot("text") == "text"
    assert weft.snapshot(torch.ones(3)).equal(torch.ones(3))


def test_a_snapshot_of_a_state_dict_is_one():
    import torch

    import weft

    model = torch.nn.Sequential(torch.nn.Embedding(300, 100), torch.nn.Linear(100, 300))
    model[1].weight = model[0].weight
    state = model.state_dict()
    taken = weft.snapshot(state)
    assert type(taken) is type(state) and taken._metadata == state._metadata
    assert taken["0.weight"] is taken["1.weight"]
    # Each is a tensor for itself: it is saved alone, and grows elsewhere.
    other = weft.snapshot([torch.ones(1 << 16), torch.ones(1 << 16, dtype=torch.bfloat16)])
    torch.save(other, io.BytesIO())
    assert other[0].untyped_storage().nbytes() == other[0].nbytes
    other[0].resize_(1 << 20)
    assert other[1].eq(1).all()
    strided = weft.snapshot({"small": torch.ones(3, 4).t(), "large": torch.ones(300, 400).t()})
    assert all(tensor.is_contiguous() for tensor in strided.values())


def test_there_and_back():
    assert in_caller(there_and_back) == 2 * 4 * LARGE


def test_it_is_a_tensor_as_any_other():
    in_caller(as_any_tensor)


def test_a_forked_childs_writes_are_its_own():
    in_caller(after_a_fork)


def test_it_outlives_the_peer_and_leaves_nothing():
    in_caller(outlives_everybody, kills=True)


@pytest.mark.parametrize("variable", ["WEFT_SHARED_MEMORY", "WEFT_UNIX_SOCKET"])
def test_where_nothing_can_be_shared_it_is_copied(variable):
    in_caller(without_shared_memory, **{variable: "0"})


def test_a_call_to_itself():
    in_caller(to_itself)


def test_what_it_makes():
    import torch

    import weft

    tensor = weft.empty(3, 1 << 16, dtype=torch.int64)
    assert tensor.shape == (3, 1 << 16) and tensor.dtype == torch.int64 and tensor.is_contiguous()
    assert weft.empty((5, 7)).shape == (5, 7)
    assert weft.empty([5]).dtype == torch.get_default_dtype()
    assert weft.empty(()).shape == () and weft.empty(0, 5).numel() == 0
    like = weft.empty_like(tensor.t(), dtype=torch.bool)
    assert like.shape == tensor.t().shape and like.dtype == torch.bool and like.is_contiguous()
    assert weft.empty_like(tensor).dtype == torch.int64
    for bad in ((-1, 5), (1 << 62, 1 << 62)):
        with pytest.raises(RuntimeError):
            weft.empty(*bad)
    with pytest.raises(TypeError):
        weft.empty(5, dtype="float")
    with pytest.raises(TypeError):
        weft.empty("5")
