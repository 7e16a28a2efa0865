"""What travels arrives: tensors of every layout, in every container, with their gradients."""

from __future__ import annotations

import dataclasses
import random
from collections import OrderedDict, namedtuple
from pathlib import Path

import pytest
from module_group import module_group
from workers import WorkerError

group = module_group(2, rpc_timeout=60)


# Tensors, by name. Built in the worker that sends them.
def build(name: str):
    import torch

    torch.manual_seed(7)
    base = torch.randn(6, 5, 4)
    big = torch.randn(300, 200)
    return {
        "dense": lambda: base,
        "big": lambda: big,
        "permuted": lambda: base.permute(2, 0, 1),
        "big-transposed": lambda: big.t(),
        "channels-last": lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
        "narrow": lambda: big.narrow(0, 3, 2),
        "strided": lambda: big[:, ::7],
        "offset": lambda: big.view(-1)[13:513],
        "expanded": lambda: torch.randn(3, 1).expand(3, 400),
        "expanded-scalar": lambda: torch.tensor(2.0).expand(1000, 1000),
        "overlapping": lambda: torch.arange(10.0).as_strided((4, 4), (2, 1)),
        "flipped": lambda: big.flip(0),
        "0-dim": lambda: torch.tensor(3.5),
        "0-dim-view": lambda: big[4, 4],
        "empty": lambda: torch.empty(0),
        "empty-shaped": lambda: torch.empty(3, 0, 5),
        "empty-slice": lambda: big[5:5],
        "64-dims": lambda: torch.ones((1,) * 64),
        "leaf": lambda: torch.randn(4, 4, requires_grad=True),
        "non-leaf": lambda: torch.randn(4, 4, requires_grad=True) * 2,
        "leaf-big": lambda: torch.randn(400, 4, requires_grad=True),
        "view-of-leaf": lambda: torch.randn(40, 40, requires_grad=True).t()[1:],
        "inference": lambda: inference(lambda: torch.ones(3) * 2),
        "bool": lambda: base > 0,
        "uint8": lambda: torch.arange(256).to(torch.uint8),
        "int8": lambda: torch.arange(-100, 100).to(torch.int8),
        "int16": lambda: torch.arange(1000).to(torch.int16),
        "int32": lambda: torch.arange(1000).to(torch.int32),
        "int64": lambda: torch.tensor([-(2**63), 2**63 - 1]),
        "uint16": lambda: torch.arange(1000).to(torch.uint16),
        "uint64": lambda: torch.arange(1000).to(torch.uint64),
        "half": lambda: base.half(),
        "bfloat16": lambda: base.bfloat16(),
        "double": lambda: base.double(),
        "float8-e4m3": lambda: base.to(torch.float8_e4m3fn),
        "float8-e5m2": lambda: base.to(torch.float8_e5m2),
        "complex64": lambda: torch.randn(5, 5, dtype=torch.complex64),
        "complex128": lambda: torch.randn(50, 50, dtype=torch.complex128),
        "complex-half": lambda: torch.randn(5, 5, dtype=torch.complex64).to(torch.complex32),
        "conj": lambda: torch.randn(5, 50, dtype=torch.complex64).conj(),
        "conj-transposed": lambda: torch.randn(5, 5, dtype=torch.complex64).mH,
        "neg": lambda: torch.randn(5, 6, dtype=torch.complex64).mH.imag,
        "conj-gapped": lambda: torch.randn(6, 6, dtype=torch.complex64)[:, :4].mH,
        "real-view": lambda: torch.randn(50, 50, dtype=torch.complex64).real,
        "nan-and-inf": lambda: torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0]),
        "sparse-coo": lambda: torch.eye(4).to_sparse(),
        "sparse-coo-large": lambda: torch.eye(700).to_sparse(1),
        "sparse-coo-uncoalesced": lambda: torch.sparse_coo_tensor(
            [[0, 0, 1]], [1.0, 2.0, 3.0], (1000,)
        ),
        "sparse-coo-hybrid": lambda: torch.sparse_coo_tensor([[0, 3]], torch.randn(2, 5), (4, 5)),
        "sparse-coo-empty": lambda: torch.sparse_coo_tensor(size=(3, 3)),
        "sparse-coo-grad": lambda: torch.eye(4).to_sparse().requires_grad_(),
        "sparse-csr": lambda: torch.eye(4).to_sparse_csr(),
        "sparse-csc": lambda: torch.eye(4).to_sparse_csc(),
        "sparse-bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
        "sparse-bsc": lambda: torch.eye(4).to_sparse_bsc((2, 2)),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "quantised": lambda: torch.quantize_per_tensor(base, 0.1, 10, torch.quint8),
        "quantised-qint32": lambda: torch.quantize_per_tensor(base, 0.1, 0, torch.qint32),
        "quantised-4-bits": lambda: torch.quantize_per_channel(
            base, torch.full((base.shape[0],), 0.1), torch.zeros(base.shape[0]), 0, torch.quint4x2
        ),
        "quantised-channel": lambda: torch.quantize_per_channel(
            big, torch.full((300,), 0.1), torch.zeros(300, dtype=torch.int64), 0, torch.qint8
        ),
        "parameter": lambda: torch.nn.Parameter(torch.randn(3, 3)),
        "parameter-frozen": lambda: torch.nn.Parameter(torch.randn(3, 3), requires_grad=False),
    }[name]()


def inference(make):
    import torch

    with torch.inference_mode():
        return make()


# fmt: off
NAMES = [
    "dense", "big", "permuted", "big-transposed", "channels-last", "narrow", "strided", "offset", "expanded",
    "expanded-scalar", "overlapping", "flipped", "0-dim", "0-dim-view", "empty", "empty-shaped",
    "empty-slice", "64-dims", "leaf", "non-leaf", "leaf-big", "view-of-leaf", "inference", "bool", "uint8",
    "int8", "int16", "int32", "int64", "uint16", "uint64", "half", "bfloat16", "double", "float8-e4m3",
    "float8-e5m2", "complex64", "complex128", "complex-half", "conj", "conj-transposed", "conj-gapped", "neg",
    "real-view", "nan-and-inf", "sparse-coo", "sparse-coo-large", "sparse-coo-uncoalesced",
    "sparse-coo-hybrid", "sparse-coo-empty", "sparse-coo-grad", "quantised", "quantised-qint32",
    "quantised-channel", "parameter", "parameter-frozen",
]
# fmt: on


def echo(value):
    return value


def plain(tensor):
    """Bytes-comparable: dense, no bits set, no graph."""
    import torch

    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.reshape(-1)


def same(sent, came) -> None:
    """Raises unless `came` is what `sent` is, to the bit."""
    import torch

    assert came.shape == sent.shape
    assert came.dtype == sent.dtype
    assert came.layout == sent.layout
    assert came.requires_grad == sent.requires_grad
    assert came.grad_fn is None
    assert came.is_quantized == sent.is_quantized
    assert isinstance(came, type(sent))
    assert torch.equal(plain(came), plain(sent))
    if sent.is_sparse:
        assert came.is_coalesced() == sent.is_coalesced()
    if sent.is_quantized:
        assert came.qscheme() == sent.qscheme()
        if came.qscheme() == torch.per_tensor_affine:
            assert (came.q_scale(), came.q_zero_point()) == (sent.q_scale(), sent.q_zero_point())


def there_and_back(name: str, to: str) -> None:
    import torch
    import torch.distributed.rpc as rpc

    sent = build(name)
    with torch.no_grad():
        before = plain(sent).clone()
    came = rpc.rpc_sync(to, echo, args=(sent,))
    same(sent, came)
    assert torch.equal(plain(sent), before)
    if came.layout == torch.strided and came.numel() and not came.is_quantized:
        assert came.untyped_storage().nbytes() <= 2 * max(sent.numel() * sent.itemsize, 4096)
        assert came.untyped_storage().data_ptr() != sent.untyped_storage().data_ptr()


def negative_size() -> str:
    import torch
    import torch.distributed.rpc as rpc

    shape = (2, 0, -3)
    with pytest.raises(RuntimeError, match="a size is negative"):
        rpc.rpc_sync("worker1", torch.add, args=(torch.tensor(0).expand(shape), 1))
    with pytest.raises(RuntimeError, match="a size is negative"):
        rpc.rpc_sync("worker1", torch.Tensor.expand, args=(torch.tensor(0), shape))
    return repr(rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 1)))


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_goes_there_and_back(group, name, to):
    group[0].call(there_and_back, name, to)


def compressed(name: str, to: str) -> list:
    import torch.distributed.rpc as rpc

    sent = build(name)
    came = rpc.rpc_sync(to, describe, args=(sent,))
    return [came, describe(sent)]


def describe(tensor) -> tuple[str, list]:
    return str(tensor.layout), tensor.to_dense().tolist()


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
@pytest.mark.parametrize("name", ["sparse-csr", "sparse-csc", "sparse-bsr", "sparse-bsc"])
def test_a_compressed_sparse_tensor_arrives(group, name, to):
    """As an argument: with one as a Python function's result torch itself fails (2.11, any agent)."""
    came, sent = group[0].call(compressed, name, to)
    assert came == sent


def compressed_answer(to: str) -> str:
    import torch.distributed.rpc as rpc

    with pytest.raises(RuntimeError) as caught:
        rpc.rpc_sync(to, build, args=("sparse-csr",), timeout=20)
    return str(caught.value)


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_a_compressed_sparse_result_is_an_error(group, to):
    """As in torch, which does not find its storage; that of a call to itself never came."""
    assert "storage" in group[0].call(compressed_answer, to)


def test_what_torch_cannot_pickle_is_refused_in_words(group):
    error = group[0].fails(compressed, "nested", "worker1")
    assert "cannot be sent to worker 'worker1'" in error.message
    assert "layout" in error.message


def test_a_tensor_of_half_bytes_arrives(group):
    try:
        group[0].call(there_and_back, "quantised-4-bits", "worker1")
    except WorkerError as error:  # torch 2.15 does not read what it has written
        assert "require a storage of at least" in str(error)


def strides_of(tensor) -> tuple:
    return tuple(tensor.stride())


def strides_seen(name: str) -> tuple[tuple, tuple]:
    import torch.distributed.rpc as rpc

    sent = build(name)
    return tuple(sent.stride()), rpc.rpc_sync("worker1", strides_of, args=(sent,))


@pytest.mark.parametrize("name", ["permuted", "big-transposed", "channels-last", "dense"])
def test_a_dense_layout_keeps_its_strides(group, name):
    ours, theirs = group[0].call(strides_seen, name)
    assert ours == theirs


def bytes_of_one_call(name: str) -> tuple[int, int]:
    """Elements' bytes of the tensor, and bytes that one call with it sends."""
    import torch.distributed.rpc as rpc

    def sent_so_far() -> int:
        info = rpc.api._get_current_rpc_agent().get_debug_info()
        return int(info["agent.peer.worker1.bytes_sent"])

    tensor = build(name)
    rpc.rpc_sync("worker1", len, args=(range(3),))  # the link is there now
    before = sent_so_far()
    rpc.rpc_sync("worker1", strides_of, args=(tensor,))
    return tensor.numel() * tensor.itemsize, sent_so_far() - before


@pytest.mark.parametrize("name", ["narrow", "strided", "offset", "0-dim-view", "empty-slice"])
def test_a_view_is_sent_without_its_storage(group, name):
    elements, sent = group[0].call(bytes_of_one_call, name)
    assert elements <= sent < elements + 2000


# Containers.


@dataclasses.dataclass
class Batch:
    inputs: object
    labels: object
    note: str = ""


Pair = namedtuple("Pair", "left right")


def containers_there_and_back(to: str) -> None:
    import torch
    import torch.distributed.rpc as rpc

    a, b = torch.randn(3), torch.randn(500, 10)
    value = {
        "list": [a, [b, (a, {"deep": b})]],
        "tuple": (a, b),
        "named": Pair(a, b),
        "ordered": OrderedDict(x=a, y=b),
        "data": Batch(a, [b], "note"),
        3: {4.5: None, (1, 2): "text", b"bytes": {1, 2}},
        "state": torch.nn.Linear(4, 4).state_dict(),
    }
    came = rpc.rpc_sync(to, echo, args=(value,))
    assert torch.equal(came["list"][1][1][1]["deep"], b)
    assert type(came["named"]) is Pair and torch.equal(came["named"].right, b)
    assert type(came["ordered"]) is OrderedDict and list(came["ordered"]) == ["x", "y"]
    assert isinstance(came["data"], Batch) and torch.equal(came["data"].labels[0], b)
    assert came[3] == value[3]
    assert list(came["state"]) == ["weight", "bias"]
    assert torch.equal(came["state"]["weight"], value["state"]["weight"])


def test_a_negative_size_fails_its_call_only(group):
    assert group[0].call(negative_size) == "tensor([2.])"


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_containers(group, to):
    group[0].call(containers_there_and_back, to)


def module_there_and_back() -> None:
    import torch
    import torch.distributed.rpc as rpc

    sent = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    came = rpc.rpc_sync("worker1", echo, args=(sent,))
    for name, value in sent.state_dict().items():
        assert torch.equal(came.state_dict()[name], value)
    assert all(p.requires_grad and isinstance(p, torch.nn.Parameter) for p in came.parameters())


def test_a_module(group):
    group[0].call(module_there_and_back)


def arrays_there_and_back() -> None:
    import numpy as np
    import torch.distributed.rpc as rpc

    for array in (
        np.arange(1000).reshape(10, 100)[:, ::3],
        np.array("text"),
        np.float32(3),
        np.zeros(0),
    ):
        came = rpc.rpc_sync("worker1", echo, args=(array,))
        assert came.dtype == array.dtype and np.array_equal(came, array)


def test_numpy_arrays(group):
    pytest.importorskip("numpy")
    group[0].call(arrays_there_and_back)


# Sizes.


def many_tensors(count: int, seed: int) -> None:
    import torch
    import torch.distributed.rpc as rpc

    sizes = random.Random(seed)
    sent = [torch.full((sizes.choice([0, 1, 7, 128, 129, 500]),), float(i)) for i in range(count)]
    came = rpc.rpc_sync("worker1", echo, args=(sent,))
    assert len(came) == count
    assert all(torch.equal(x, y) for x, y in zip(sent, came, strict=True))


def test_ten_thousand_tensors_in_one_message(group):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    group[0].call(many_tensors, 10_000, seed)


def pickle_many() -> None:
    """The internal pickler, with Weft running: shorter than upstream's, and upstream reads it."""
    import pickletools

    import torch
    from torch.distributed.rpc import internal

    tensors = [torch.ones(i) for i in range(20)]
    sent = {"all": tensors, "again": [tensors[3], torch.nn.Parameter(tensors[4])]}
    data, table = internal.serialize(sent)
    named = [argument for _, argument, _ in pickletools.genops(data) if argument is not None]
    assert named.count("_tensor_receiver") == 1
    assert named.count("getattr") == 1
    assert len(table) == 21  # and what the parameter holds
    assert all(x is y for x, y in zip(table, tensors, strict=False))
    # A pickler of its own, as one of upstream's would read it elsewhere.
    came = internal._InternalRPCPickler().deserialize(data, table)
    assert all(x is y for x, y in zip(came["all"], tensors, strict=True))
    assert came["again"][0] is tensors[3]
    assert isinstance(came["again"][1], torch.nn.Parameter)


def test_the_receiver_of_tensors_is_named_once(group):
    group[0].call(pickle_many)


def test_without_weft_the_pickler_is_upstreams():
    import torch
    from torch.distributed.rpc import internal

    import weft  # noqa: F401

    pickler = internal._internal_rpc_pickler
    sent = [torch.ones(2), torch.ones(3)]
    assert internal.serialize(sent)[0] == internal._InternalRPCPickler().serialize(sent)[0]
    assert pickler._dispatch_table[torch.Tensor] == pickler._tensor_reducer


def large_payload(size: int) -> None:
    import os

    import torch.distributed.rpc as rpc

    block = os.urandom(1 << 20)
    sent = block * (size >> 20)
    came = rpc.rpc_sync("worker1", echo, args=(sent,))
    assert came == sent


def test_fifty_megabytes_of_python(group):
    group[0].call(large_payload, 50 << 20)


def free_memory() -> int:
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024


def samples(tensor) -> list[int]:
    """Without a sum: that would widen every byte to eight."""
    few = [tensor.numel(), *tensor[[0, 1 << 31, -1]].tolist()]
    return [*few, int(tensor.amin()), int(tensor.amax())]


def one_huge_tensor(numel: int) -> list[int]:
    import torch
    import torch.distributed.rpc as rpc

    tensor = torch.ones(numel, dtype=torch.uint8)
    tensor[-1] = 101
    tensor[1 << 31] = 51
    return rpc.rpc_sync("worker1", samples, args=(tensor,), timeout=100)


def test_a_message_beyond_two_gigabytes(group):
    if free_memory() < 12 << 30:
        pytest.skip("2.5 GB in one message needs 12 GiB of free memory on this machine")
    numel = 2_500_000_000
    assert group[0].call(one_huge_tensor, numel, timeout=110) == [numel, 1, 51, 101, 1, 101]


# What cannot be sent is refused in words, and the group goes on.


def refused(kind: str) -> str:
    import torch
    import torch.distributed.rpc as rpc

    bad = {
        **{kind: lambda kind=kind: make_bad(kind) for kind in ("freed", "shrunk")},
        "meta": lambda: torch.empty(3, device="meta"),
        "lambda": lambda: (lambda: 1),
        "lock": lambda: __import__("threading").Lock(),
    }[kind]()
    try:
        rpc.rpc_sync("worker1", echo, args=(bad,), timeout=20)
    except Exception as error:
        assert rpc.rpc_sync("worker1", echo, args=(5,)) == 5
        return f"{type(error).__name__}: {error}"
    return "answered"


def refused_answer(kind: str) -> str:
    import torch.distributed.rpc as rpc

    try:
        rpc.rpc_sync("worker1", make_bad, args=(kind,), timeout=20)
    except Exception as error:
        assert rpc.rpc_sync("worker1", echo, args=(5,)) == 5
        return f"{type(error).__name__}: {error}"
    return "answered"


def make_bad(kind: str):
    import torch

    if kind in ("freed", "shrunk"):
        (made := torch.arange(8.0)).untyped_storage().resize_(0 if kind == "freed" else 8)
        return made
    return torch.empty(3, device="meta") if kind == "meta" else (lambda: 1)


@pytest.mark.parametrize("direction", [refused, refused_answer])
def test_a_meta_tensor_is_refused(group, direction):
    text = group[0].call(direction, "meta")
    assert "meta" in text
    assert "worker1" in text or "worker0" in text
    assert "no data" in text


@pytest.mark.parametrize("kind", ["freed", "shrunk"])
@pytest.mark.parametrize("direction", [refused, refused_answer])
def test_a_tensor_without_its_memory_is_refused(group, direction, kind):
    text = group[0].call(direction, kind)
    assert f"has {0 if kind == 'freed' else 8} of the 32 bytes that its elements need" in text
    assert f"worker '{'worker1' if direction is refused else 'worker0'}'" in text


@pytest.mark.parametrize("direction", [refused, refused_answer])
def test_what_pickle_cannot_do(group, direction):
    assert "pickle" in group[0].call(direction, "lambda")


# Aliasing and gradients.


def scribble(tensor):
    tensor.detach().fill_(7)
    return tensor


def receiver_writes(to: str) -> None:
    import torch
    import torch.distributed.rpc as rpc

    for sent in (
        torch.zeros(3),
        torch.zeros(400, 400),
        torch.zeros(10, 10).t(),
        torch.zeros(9, 9)[::2],
    ):
        came = rpc.rpc_sync(to, scribble, args=(sent,))
        assert came.eq(7).all() and sent.eq(0).all()
        kept = rpc.remote(to, scribble, args=(sent,))
        assert kept.to_here().eq(7).all() and sent.eq(0).all()
        kept.to_here().fill_(9)
        assert kept.to_here().eq(7).all() or to == "worker0"


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_the_receiver_cannot_change_the_senders_tensor(group, to):
    group[0].call(receiver_writes, to)


def twice(x, y):
    return x * y, (x + y).sum()


def gradients_through(to: str) -> None:
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    torch.manual_seed(3)
    x = torch.randn(30, 20, requires_grad=True)
    y = torch.randn(30, 20, requires_grad=True)
    a, b = twice(x * 2, y)
    loss = (a.sin() * b).sum()
    loss.backward()
    with dist_autograd.context() as context:
        c, d = rpc.rpc_sync(to, twice, args=(x * 2, y))
        assert torch.equal(a, c) and torch.equal(b, d)
        remote_loss = (c.sin() * d).sum()
        assert torch.equal(loss, remote_loss)
        dist_autograd.backward(context, [remote_loss])
        grads = dist_autograd.get_gradients(context)
        assert torch.equal(grads[x], x.grad) and torch.equal(grads[y], y.grad)


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_gradients_are_those_of_one_process(group, to):
    group[0].call(gradients_through, to)


def remote_module_like_local(to: str) -> None:
    import torch
    import torch.distributed.autograd as dist_autograd
    from torch.distributed.nn import RemoteModule

    torch.manual_seed(5)
    inputs = torch.randn(16, 12, requires_grad=True)
    remote = RemoteModule(f"{to}/cpu", torch.nn.Linear, args=(12, 6))
    local = torch.nn.Linear(12, 6)
    with torch.no_grad():
        for mine, theirs in zip(local.parameters(), remote.remote_parameters(), strict=True):
            mine.copy_(theirs.to_here())
    expected = local(inputs)
    expected.square().sum().backward()
    with dist_autograd.context() as context:
        came = remote(inputs)
        assert torch.equal(came, expected)
        dist_autograd.backward(context, [came.square().sum()])
        assert torch.equal(dist_autograd.get_gradients(context)[inputs], inputs.grad)


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
def test_a_remote_module_is_the_local_one_to_the_bit(group, to):
    group[0].call(remote_module_like_local, to)
