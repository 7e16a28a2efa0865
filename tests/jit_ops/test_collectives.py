"""torch.ops.weft's collectives on a named process group: values, gradients, scripting, tracing, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from torch import Tensor, nn

COUNT = 3


def name() -> str:
    assert dist.group.WORLD is not None
    return dist.group.WORLD.group_name


def mine(*shape: int, rank: int | None = None) -> Tensor:
    """What a rank brings: other numbers on each."""
    generator = torch.Generator().manual_seed(dist.get_rank() if rank is None else rank)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def everybodys(*shape: int) -> list[Tensor]:
    return [mine(*shape, rank=rank) for rank in range(COUNT)]


# What ranks run.


def values() -> None:
    ops, group, rank = torch.ops.weft, name(), dist.get_rank()
    assert (ops.group_rank(group), ops.group_size(group)) == (rank, COUNT)
    x, every = mine(2, 3), everybodys(2, 3)
    before = x.clone()
    torch.testing.assert_close(ops.all_reduce(x, "sum", group), sum(every))
    torch.testing.assert_close(ops.all_reduce(x, "avg", group), sum(every) / COUNT)
    assert torch.equal(ops.all_reduce(x, "max", group), torch.stack(every).amax(0))
    assert torch.equal(ops.broadcast(x.T, 1, group), every[1].T)
    reduced = ops.reduce(x, 2, "sum", group)
    torch.testing.assert_close(reduced, sum(every) if rank == 2 else torch.zeros_like(x))
    gathered = ops.gather(x, 1, group)
    assert torch.equal(gathered, torch.stack(every) if rank == 1 else x.new_empty(0, 2, 3))
    rows = torch.stack(every) if rank == 1 else x.new_empty(0, 2, 3)
    assert torch.equal(ops.scatter(rows, 1, group), x)
    assert torch.equal(x, before)
    # Around the ring; the odd one out receives first.
    right, left = (rank + 1) % COUNT, (rank - 1) % COUNT
    if rank == 0:
        got = ops.recv(x, left, group, 5)
        ops.send(x.T.contiguous().T, right, group, 5)
    else:
        ops.send(x, right, group, 5)
        got = ops.recv(torch.empty_like(x), left, group, 5)
    assert torch.equal(got, every[left])
    ops.barrier(group)


def gradients() -> None:
    """Against the same sum computed here from all the ranks' inputs."""
    ops, group, rank = torch.ops.weft, name(), dist.get_rank()
    weights = everybodys(2, 3)

    def check(collective, plain) -> None:
        x = mine(2, 3).requires_grad_()
        (collective(x) * weights[rank]).sum().backward()
        every = [one.requires_grad_() for one in everybodys(2, 3)]
        plain(every).backward()
        torch.testing.assert_close(x.grad, every[rank].grad)

    everything = sum(weights)
    check(lambda x: ops.all_reduce(x, "sum", group), lambda xs: (sum(xs) * everything).sum())
    check(lambda x: ops.all_reduce(x, "avg", group), lambda xs: (sum(xs) / 3 * everything).sum())
    check(
        lambda x: ops.broadcast(x, 1, group),
        lambda xs: sum((0 * one).sum() for one in xs) + (xs[1] * everything).sum(),
    )
    check(lambda x: ops.reduce(x, 2, "sum", group), lambda xs: (sum(xs) * weights[2]).sum())
    check(lambda x: ops.reduce(x, 2, "avg", group), lambda xs: (sum(xs) / 3 * weights[2]).sum())
    check(
        lambda x: ops.gather(x, 0, group).sum(0),  # of no rows elsewhere: it takes part in backward
        lambda xs: (sum(xs) * weights[0]).sum(),
    )
    # Rows of rank 1 go out; each rank weighs its own.
    rows = mine(COUNT, 2, 3, rank=1) if rank == 1 else torch.empty(0, 2, 3, dtype=torch.float64)
    rows.requires_grad_()
    (ops.scatter(rows, 1, group) * weights[rank]).sum().backward()
    assert rows.grad is not None
    assert torch.equal(rows.grad, torch.stack(weights) if rank == 1 else torch.empty_like(rows))
    # Gradients of gradients.
    x = mine(2, 3).requires_grad_()
    y = ops.all_reduce(x * x, "sum", group)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.full_like(x, 2.0 * COUNT))


def without_threads() -> set[str]:
    """Synchronous collectives; the names of this process's threads behind them."""
    ops, group, rank = torch.ops.weft, name(), dist.get_rank()
    x = mine(2, 3)
    ops.all_reduce(x, "sum", group)
    ops.broadcast(x, 0, group)
    ops.reduce(x, 0, "sum", group)
    ops.gather(x, 0, group)
    ops.scatter(torch.stack(everybodys(2, 3)) if rank == 0 else x.new_empty(0, 2, 3), 0, group)
    ops.barrier(group)
    return {one.read_text().strip() for one in Path("/proc/self/task").glob("*/comm")}


def inferred() -> None:
    """What a rank does not use of a reduction, where its memory may not be changed."""
    x, group, rank = mine(2, 3), name(), dist.get_rank()
    with torch.inference_mode():
        now = torch.ops.weft.reduce(x, 2, "sum", group)
        later = torch.ops.weft.reduce_async(x, 2, "sum", group).wait()
    right = sum(everybodys(2, 3)) if rank == 2 else torch.zeros_like(x)
    torch.testing.assert_close(now.clone(), right)
    torch.testing.assert_close(later.clone(), right)


class Scripted(nn.Module):
    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> Tensor:
        rank = torch.ops.weft.group_rank(self.group)
        every = torch.ops.weft.gather(x, 0, self.group)
        total = torch.ops.weft.reduce(x, 0, "sum", self.group)
        if rank == 0:
            total = total - every.sum(0)
        torch.ops.weft.barrier(self.group)
        return torch.ops.weft.broadcast(total, 0, self.group)


def scripted(path: str) -> None:
    path = f"{path}/{dist.get_rank()}.pt"
    torch.jit.script(Scripted(name())).save(path)
    model = torch.jit.load(path).eval()
    for one in (model, torch.jit.freeze(model)):
        torch.testing.assert_close(one(mine(2, 3)), torch.zeros(2, 3, dtype=torch.float64))


class Overlapped(nn.Module):
    """All of the asynchronous forms, several under way at once."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        rank = torch.ops.weft.group_rank(self.group)
        size = torch.ops.weft.group_size(self.group)
        total = torch.ops.weft.all_reduce_async(x, "sum", self.group)
        first = torch.ops.weft.broadcast_async(x, 1, self.group)
        reduced = torch.ops.weft.reduce_async(x, 2, "max", self.group)
        every = torch.ops.weft.gather_async(x, 0, self.group)
        rows = torch.ones(0, 2, 3, dtype=x.dtype)
        if rank == 0:
            rows = torch.stack([x, x + 1, x + 2])
        mine = torch.ops.weft.scatter_async(rows, 0, self.group)
        sent = torch.ops.weft.send_async(x, (rank + 1) % size, self.group, 3)
        got = torch.ops.weft.recv_async(x, (rank + size - 1) % size, self.group, tag=3)
        everybody = torch.ops.weft.barrier_async(self.group)
        torch.jit._wait(sent)
        torch.jit._wait(everybody)
        return total.wait(), first.wait(), reduced.wait(), every.wait(), mine.wait(), got.wait()


def overlapped(path: str) -> None:
    path = f"{path}/{dist.get_rank()}.pt"
    torch.jit.script(Overlapped(name())).save(path)
    model = torch.jit.load(path).eval()
    x, rank, inputs = mine(2, 3), dist.get_rank(), everybodys(2, 3)
    for one in (model, torch.jit.freeze(model), Overlapped(name())):
        total, first, reduced, every, row, got = one(x)
        torch.testing.assert_close(total, sum(inputs))
        assert torch.equal(first, inputs[1])
        most = torch.stack(inputs).amax(0)
        assert torch.equal(reduced, most if rank == 2 else torch.zeros_like(x))
        assert torch.equal(every, torch.stack(inputs) if rank == 0 else x.new_empty(0, 2, 3))
        assert torch.equal(row, inputs[0] + rank)
        assert torch.equal(got, inputs[(rank - 1) % COUNT])


def traced() -> None:
    group = name()

    def body(x: Tensor) -> Tensor:
        ops = torch.ops.weft
        return ops.broadcast(
            ops.all_reduce(x * 2, "sum", group) + ops.reduce(x, 0, "sum", group), 0, group
        )

    x = mine(2, 3)
    right = 3 * sum(everybodys(2, 3))
    compiled = torch.compile(body, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), right)
    y = x.clone().requires_grad_()
    compiled(y).sum().backward()
    z = x.clone().requires_grad_()
    body(z).sum().backward()
    torch.testing.assert_close(y.grad, z.grad)
    module = type("M", (nn.Module,), {"forward": lambda self, x: body(x)})()
    torch.testing.assert_close(torch.export.export(module, (x,)).module()(x), right)


def unused_traced(backend: str) -> None:
    """Only rank 0 uses all results; the others take part all the same, or rank 0 would wait for them."""
    group, rank, ops = name(), dist.get_rank(), torch.ops.weft

    def body(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        used = ops.broadcast(x, 1, group)
        results = (
            ops.all_reduce(x, "sum", group),
            ops.broadcast(x, 0, group),
            ops.reduce(x, 0, "sum", group),
            ops.gather(x, 0, group),
            ops.scatter(rows, 0, group),
        )
        return (used, *results) if rank == 0 else (used,)

    x = mine(2, 3)
    rows = torch.stack([x, x]) if rank == 0 else x.new_empty(0, 2, 3)
    module = type("M", (nn.Module,), {"forward": lambda self, x, rows: body(x, rows)})()
    # The cache on disk does not know which operators have effects.
    with torch._inductor.config.patch(force_disable_caches=True):
        if backend == "export":
            run = torch.export.export(module, (x, rows)).run_decompositions().module()
        else:
            run = torch.compile(body, backend=backend, fullgraph=True)
        for one, other in zip(run(x, rows), body(x, rows), strict=True):
            assert torch.equal(one, other)
    ops.barrier(group)


def messages_traced() -> None:
    group, rank = name(), dist.get_rank()

    def body(x: Tensor) -> Tensor:
        torch.ops.weft.barrier(group)
        if rank == 0:
            torch.ops.weft.send(x + 1, 1, group)
        if rank == 1:
            return torch.ops.weft.recv(x, 0, group)
        return x * 2

    x = torch.ones(3)
    compiled = torch.compile(body, backend="aot_eager", fullgraph=True)
    expected = x * 2
    assert torch.equal(compiled(x), expected)
    module = type("M", (nn.Module,), {"forward": lambda self, x: body(x)})()
    assert torch.equal(torch.export.export(module, (x,)).module()(x), expected)


def checked() -> None:
    """opcheck on all ranks at once: it runs an operator equally often everywhere."""
    ops, group, rank = torch.ops.weft, name(), dist.get_rank()
    for grad in (False, True):
        x = mine(2, 3).requires_grad_(grad)
        rows = (mine(COUNT, 2) if rank == 0 else mine(0, 2)).requires_grad_(grad)
        torch.library.opcheck(ops.all_reduce.default, (x, "sum", group))
        torch.library.opcheck(ops.broadcast.default, (x, 0, group))
        torch.library.opcheck(ops.reduce.default, (x, 0, "sum", group))
        torch.library.opcheck(ops.gather.default, (x, 0, group))
        torch.library.opcheck(ops.scatter.default, (rows, 0, group))


def checked_messages() -> None:
    ops, group, rank = torch.ops.weft, name(), dist.get_rank()
    if rank == 0:
        torch.library.opcheck(ops.send.default, (mine(2), 1, group))
    if rank == 1:
        torch.library.opcheck(ops.recv.default, (mine(2), 0, group))
    ops.barrier(group)


def waits_for_all() -> None:
    torch.ops.weft.all_reduce_async(torch.ones(3), "sum", name()).wait()


def refused() -> list[str]:
    ops, group, rank = torch.ops.weft, name(), dist.get_rank()
    x = mine(2)
    texts = []
    for call in (
        lambda: ops.all_reduce(x, "sum", "nobody"),
        lambda: ops.all_reduce(x, "mean", group),
        lambda: ops.broadcast(x, 3, group),
        lambda: ops.send(x, -1, group),
        lambda: ops.send(x, 0, group, 2**32),
        lambda: ops.recv(x, 0, group, -(2**31) - 1),
        lambda: ops.send(x.clone().requires_grad_(), (rank + 1) % COUNT, group),
        lambda: ops.scatter(mine(2, 2), 0, group),
        lambda: ops.all_reduce_async(x.clone().requires_grad_(), "sum", group),
        lambda: ops.barrier_async("nobody"),
    ):
        try:
            call()
        except RuntimeError as error:
            texts.append(str(error).splitlines()[0])
    y = ops.all_reduce(x.clone().requires_grad_(), "max", group)
    try:
        y.sum().backward()
    except RuntimeError as error:
        texts.append(str(error).splitlines()[0])
    return texts


@pytest.fixture(scope="module")
def ranks():
    with Ranks(COUNT) as all_ranks:
        yield all_ranks


def test_values(ranks):
    ranks.all(values)


def test_synchronous_ones_run_on_the_calling_thread():
    with Ranks(COUNT) as fresh:
        for names in fresh.all(without_threads):
            assert "weft-ops" not in names


def test_in_inference_mode(ranks):
    ranks.all(inferred)


def test_gradients(ranks):
    ranks.all(gradients)


def test_scripted_saved_and_frozen(ranks, tmp_path):
    ranks.all(scripted, str(tmp_path))


def test_futures_scripted_saved_and_frozen(ranks, tmp_path):
    ranks.all(overlapped, str(tmp_path))


def test_a_lost_rank_fails_the_future():
    with Ranks(2) as two:
        two[1].kill()
        error = two[0].fails(waits_for_all)
    assert "rank 1" in error.message


@pytest.mark.parametrize("what", [traced, messages_traced])
def test_compiled_and_exported(ranks, what):
    ranks.all(what, timeout=150)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor", "export"])
def test_a_result_that_a_rank_does_not_use_keeps_its_collective(backend):
    with Ranks(2) as two:  # ranks of their own: one left waiting would fail the tests after it
        two.all(unused_traced, backend, timeout=110)


@pytest.mark.parametrize("what", [checked, checked_messages])
def test_they_are_good_operators(ranks, what):
    ranks.all(what, timeout=150)


def test_what_is_wrong_is_said(ranks):
    for texts in ranks.all(refused):
        for text, part in zip(
            texts,
            (
                "no process group named 'nobody'",
                "'mean' is not a reduction",
                "no rank 3 in group",
                "no rank -1 in group",
                "a tag is a number of 32 bits, got 4294967296",
                "a tag is a number of 32 bits, got -2147483649",
                "send carries no gradients",
                "scatter from rank 0",
                "all_reduce_async carries no gradients: give it x.detach(), or use all_reduce",
                "no process group named 'nobody'",
                "not 'max'",
            ),
            strict=True,
        ):
            assert part in text
