"""What the ranks of test_process_group.py run: each collective on CUDA tensors, held against the CPU's."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from emulation import EMULATION
from emulation import findings as found

STAGING = 64 << 10  # bytes: small, so that tensors of a test's size take several rounds
CUDA = torch.device("cuda", 0)


def join(rank: int, size: int, meeting: str, timeout: float, staging: int) -> None:
    from datetime import timedelta

    import weft

    torch.set_num_threads(1)
    dist.init_process_group(
        "weft",
        init_method=meeting,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
        pg_options=weft.ProcessGroupOptions(staging_bytes=staging),
    )


def findings() -> int:
    torch.cuda.synchronize()
    return found()


def delegate_name() -> str:
    dist.all_reduce(torch.ones(1, device=CUDA))
    return dist.group.WORLD._get_backend(torch.device("cpu")).delegate("cuda").name()


RECORDED: list[tuple[str, int, int]] = []


def record_nccl() -> None:
    """What would make an NCCL backend notes what it was asked for, and makes one that does nothing."""
    from torch._C._distributed_c10d import FakeProcessGroup

    from weft._torch import process_group

    def make(options, device, store, rank, size, timeout, *names):
        RECORDED.append((torch.device(device).type, rank, size))
        return FakeProcessGroup._create_internal(rank, size)

    process_group._make_nccl = make


def made_for(device: int) -> tuple[str, list[tuple[str, int, int]]]:
    """The backend that this rank's tensors on a device get, and what the recorder noted."""
    tensor = torch.ones(1, device=f"cuda:{device}")
    dist.all_reduce(tensor)
    return dist.group.WORLD._get_backend(torch.device("cpu")).delegate("cuda").name(), RECORDED


def values(numel: int, dtype: torch.dtype, place: int = 0) -> torch.Tensor:
    """This rank's numbers, small enough for every reduction to be exact."""
    numbers = (torch.arange(numel) + 7 * dist.get_rank() + 3 * place) % 3 + 1
    return numbers.to(dtype)


def same(here: torch.Tensor, there: torch.Tensor, what: str) -> None:
    """At once on the current stream, as a program would use the result."""
    used = there.clone()
    assert torch.equal(here, used.cpu()), f"{what}: {here} on the CPU, {used.cpu()} on the device"


def on_both(what: str, numel: int, run: Callable[[torch.device], list[torch.Tensor]]) -> None:
    for here, there in zip(run(torch.device("cpu")), run(CUDA), strict=True):
        same(here, there, f"{what} of {numel}")


def reductions(dtype: torch.dtype) -> list[dist.ReduceOp.RedOpType]:
    op = dist.ReduceOp
    if dtype.is_complex:
        return [op.SUM]  # torch.distributed refuses the others
    found = [op.SUM, op.PRODUCT, op.MIN, op.MAX]
    if dtype is not torch.bool:
        found.append(op.AVG)
    if not dtype.is_floating_point:
        found += [op.BAND, op.BOR, op.BXOR]
    return found


def reduce_all(numel: int, dtype: torch.dtype) -> None:
    size = dist.get_world_size()
    for op in reductions(dtype):

        def all_reduce(device, op=op):
            tensor = values(numel, dtype).to(device)
            dist.all_reduce(tensor, op)
            return [tensor]

        def reduce(device, op=op):
            tensor = values(numel, dtype).to(device)
            dist.reduce(tensor, size - 1, op)
            return [tensor]

        def scatter(device, op=op):
            whole = values(numel * size, dtype).to(device)
            out = torch.empty(numel, dtype=dtype, device=device)
            dist.reduce_scatter_tensor(out, whole, op)
            listed = torch.empty(numel, dtype=dtype, device=device)
            dist.reduce_scatter(listed, list(whole.chunk(size)) if numel else [whole] * size, op)
            return [out, listed]

        for run in (all_reduce, reduce, scatter):
            on_both(f"{run.__name__} {op} {dtype}", numel, run)


def move_all(numel: int, dtype: torch.dtype) -> None:
    size, rank = dist.get_world_size(), dist.get_rank()

    def empty(count, device):
        return torch.zeros(count, dtype=dtype, device=device)

    def broadcast(device):
        tensor = values(numel, dtype).to(device)
        dist.broadcast(tensor, size - 1)
        return [tensor]

    def gather_all(device):
        own = values(numel, dtype).to(device)
        listed = [empty(numel, device) for _ in range(size)]
        dist.all_gather(listed, own)
        whole = empty(numel * size, device)
        dist.all_gather_into_tensor(whole, own)
        return [*listed, whole]

    def gather_and_scatter(device):
        own = values(numel, dtype).to(device)
        listed = [empty(numel, device) for _ in range(size)] if rank == 0 else None
        dist.gather(own, listed, 0)
        share = empty(numel, device)
        parts = [values(numel, dtype, part).to(device) for part in range(size)]
        dist.scatter(share, parts if rank == 1 else None, 1)
        return [*(listed or []), share]

    def to_all(device):
        parts = [values(numel + part, dtype, part).to(device) for part in range(size)]
        out = [empty(numel + rank, device) for _ in range(size)]
        dist.all_to_all(out, parts)
        whole = empty(sum(one.numel() for one in out), device)
        dist.all_to_all_single(
            whole, torch.cat(parts), [numel + rank] * size, [part.numel() for part in parts]
        )
        return [*out, whole]

    def messages(device):
        received = empty(numel, device)
        ops = [
            dist.P2POp(dist.isend, values(numel, dtype).to(device), (rank + 1) % size, tag=5),
            dist.P2POp(dist.irecv, received, (rank - 1) % size, tag=5),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return [received]

    for run in (broadcast, gather_all, gather_and_scatter, messages, to_all):
        if run is to_all and device_has_no(dtype):
            continue
        on_both(f"{run.__name__} {dtype}", numel, run)


def device_has_no(dtype: torch.dtype) -> bool:
    """Whether torch.cat is missing for the type."""
    return dtype in (torch.float8_e4m3fn, torch.float8_e5m2)


def coalesced() -> None:
    size = dist.get_world_size()

    def run(device):
        tensors = [values(count, torch.float32).to(device) for count in (1, 300, 7)]
        with dist._coalescing_manager(device=device):
            for tensor in tensors:
                dist.all_reduce(tensor)
        gathered = [torch.empty(one.numel() * size, device=device) for one in tensors]
        with dist._coalescing_manager(device=device, async_ops=True) as manager:
            for whole, own in zip(gathered, tensors, strict=True):
                dist.all_gather_into_tensor(whole, own)
        manager.wait()
        return [*tensors, *gathered]

    on_both("coalesced", 308, run)


def uneven_layouts() -> None:
    """Transposed, and with steps: outputs that have to be written back."""

    def run(device):
        transposed = values(600, torch.float32).reshape(20, 30).to(device).t()
        dist.all_reduce(transposed)
        stepped = torch.zeros(2 * 600, device=device)[::2]
        dist.all_gather_into_tensor(
            torch.empty(600 * dist.get_world_size(), device=device), stepped
        )
        dist.broadcast(stepped, 0)
        return [transposed.contiguous(), stepped.contiguous()]

    on_both("layouts", 600, run)


def sums_that_need_room() -> None:
    """They do not fit the type, or lose what is added to a partial sum that is rounded to it."""
    op = dist.ReduceOp
    for dtype, how, numbers in (
        (torch.float16, op.AVG, (60000.0, 60000.0, 60000.0)),
        (torch.float16, op.SUM, (60000.0, 5000.0, -60000.0)),
        (torch.float16, op.SUM, (2048.0, 1.0, 1.0)),
        (torch.float16, op.PRODUCT, (300.0, 300.0, 0.001)),
        (torch.bfloat16, op.SUM, (256.0, 1.0, 1.0)),
        (torch.int8, op.AVG, (100, 127, 101)),
        (torch.uint8, op.AVG, (255, 255, 255)),
        (torch.int16, op.AVG, (-30000, -30001, -30001)),
        (torch.int32, op.AVG, (2**31 - 1, 2**31 - 2, 2**31 - 1)),
        (torch.int64, op.AVG, (5, -8, -3)),
    ):

        def all_reduce(device, dtype=dtype, how=how, numbers=numbers):
            tensor = torch.full((5,), numbers[dist.get_rank()], dtype=dtype).to(device)
            dist.all_reduce(tensor, how)
            return [tensor]

        on_both(f"{how} {dtype} {numbers}", 5, all_reduce)


def shared_memory(numel: int) -> None:
    """Inputs and outputs, or two outputs, in one memory, at another place of it in each round."""
    size, rank = dist.get_world_size(), dist.get_rank()

    def numbers(count, device):
        return (torch.arange(count) + 100_000 * rank).to(device)

    def gather(device):
        whole = torch.zeros(size * numel, dtype=torch.int64, device=device)
        own = whole[numel // 2 : numel // 2 + numel]
        own.copy_(numbers(numel, device))
        dist.all_gather_into_tensor(whole, own)
        return [whole]

    def gather_into_shared_outputs(device):
        memory = torch.zeros(size * numel, dtype=torch.int64, device=device)
        outputs = [memory[part * numel // 2 :][:numel] for part in range(size)]
        dist.all_gather(outputs, numbers(numel, device))
        return [memory]

    def scatter(device):
        whole = numbers(size * numel, device)
        dist.reduce_scatter_tensor(whole[numel // 2 : numel // 2 + numel], whole)
        return [whole]

    def in_its_place(device):
        whole = numbers(size * numel, device)
        own = whole[rank * numel : (rank + 1) * numel]
        dist.reduce_scatter_tensor(own, whole)
        dist.all_gather_into_tensor(whole, own)
        return [whole]

    def to_all(device):
        gives = [numel + 100 * ((rank - to) % size) for to in range(size)]
        wants = [numel + 100 * ((source - rank) % size) for source in range(size)]
        whole = numbers(sum(gives), device)
        dist.all_to_all_single(whole, whole, wants, gives)
        return [whole]

    for run in (gather, gather_into_shared_outputs, scatter, in_its_place, to_all):
        on_both(f"{run.__name__} in shared memory", numel, run)


def outputs_that_repeat_themselves() -> None:
    """Each is refused before the others can take part, so nothing is half done."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def repeats(numel: int = 4) -> torch.Tensor:
        return torch.zeros(1, device=CUDA).expand(numel)

    def ones(numel: int = 4) -> torch.Tensor:
        return torch.ones(numel, device=CUDA)

    other = (rank + 1) % size
    for call in (
        lambda: dist.all_reduce(repeats()),
        lambda: dist.all_reduce_coalesced([ones(2), repeats()]),
        lambda: dist.broadcast(repeats(), other),
        lambda: dist.reduce(repeats(), rank),
        lambda: dist.all_gather([repeats()] * size, ones()),
        lambda: dist.all_gather_into_tensor(repeats(4 * size), ones()),
        lambda: dist.gather(ones(), [repeats()] * size, dst=rank),
        lambda: dist.scatter(repeats(), src=other),
        lambda: dist.reduce_scatter(repeats(), [ones()] * size),
        lambda: dist.reduce_scatter_tensor(repeats(), ones(4 * size)),
        lambda: dist.all_to_all([repeats()] * size, [ones()] * size),
        lambda: dist.all_to_all_single(repeats(size), ones(size)),
        lambda: dist.recv(repeats(), other),
    ):
        with pytest.raises(RuntimeError, match=r"weft:.* single memory location"):
            call()
    # What is only read may repeat itself.
    tensor = repeats() if rank == 0 else ones()
    dist.broadcast(tensor, 0)
    same(torch.zeros(4), tensor, "a broadcast")


def premultiplied() -> None:
    def run(device):
        tensor = values(500, torch.float32).to(device)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0))
        return [tensor]

    on_both("premul", 500, run)


def streams(numel: int) -> None:
    """Operations on side streams and the current one; inputs overwritten and dropped at once."""
    size, rank = dist.get_world_size(), dist.get_rank()
    side = torch.cuda.Stream()
    expected = torch.full((numel,), float(sum(range(1, size + 1))))
    for _ in range(3):
        with torch.cuda.stream(side):
            early = torch.full((numel,), rank + 1.0, device=CUDA)
            work = dist.all_reduce(early, async_op=True)
        late = torch.full((numel,), rank + 1.0, device=CUDA)
        dist.all_reduce(late)
        kept = late * 1
        late.fill_(-5.0)  # the stream waits for the operation: it must not read this
        work.wait()
        early += 0
        early.record_stream(torch.cuda.current_stream())
        same(expected, early, "on a side stream")
        same(expected, kept, "on the current stream")
        # The input is dropped while the operation may still read it.
        out = torch.empty(numel * size, device=CUDA)
        work = dist.all_gather_into_tensor(
            out, torch.full((numel,), rank + 1.0, device=CUDA), async_op=True
        )
        torch.full((numel,), -7.0, device=CUDA)  # may get the input's memory
        work.wait()
        gathered = torch.arange(1.0, size + 1).repeat_interleave(numel)
        same(gathered, out, "a dropped input")
        out.fill_(0.0)


def future() -> None:
    tensor = torch.ones(1000, device=CUDA)
    doubled = dist.all_reduce(tensor, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    same(torch.full((1000,), 2.0 * dist.get_world_size()), doubled.wait(), "a future's callback")


def sums_are_alike(numel: int) -> list[float]:
    """float32 sums whose bits depend on the order; the same bits everywhere."""
    torch.manual_seed(dist.get_rank())
    tensor = torch.randn(numel).to(CUDA)
    dist.all_reduce(tensor)
    return tensor.cpu().tolist()


#: So many operations, an even number, that a receiver who does not wait is there first.
LATE = 20


def message_order(numel: int) -> None:
    """Every chunk of every message has numbers of its own, which the sender's stream is late with."""
    rank = dist.get_rank()
    numbers = torch.arange(numel, dtype=torch.float32)
    tensors = [numbers.to(CUDA) + at for at in range(5)]
    for at in range(5):
        if rank == 0:
            for _ in range(LATE):
                tensors[at].neg_()
            dist.send(tensors[at], 1)
            tensors[at].fill_(-1.0)
        elif rank == 1:
            dist.recv(tensors[at].fill_(-2.0), 0)
            same(numbers + at, tensors[at], f"message {at}")


def late_messages(numel: int) -> None:
    """As above; the sender's stream is late by a second."""
    from emulation import copy_late

    rank = dist.get_rank()
    numbers = torch.arange(numel, dtype=torch.float32, device=CUDA)
    for at in range(2):
        tensor = torch.zeros_like(numbers)
        if rank == 0:
            copy_late(tensor, numbers + at)
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)
            same(numbers.cpu() + at, tensor, f"message {at}")


def barrier() -> None:
    dist.barrier(device_ids=[0])


def different_calls() -> str:
    """One rank calls something else: all are told, and the group goes on."""
    tensor = torch.ones(10, device=CUDA)
    try:
        if dist.get_rank() == 0:
            dist.all_reduce(tensor)
        else:
            dist.broadcast(tensor, 0)
    except RuntimeError as error:
        after = torch.ones(3, device=CUDA)
        dist.all_reduce(after)
        same(torch.full((3,), float(dist.get_world_size())), after, "after different calls")
        return str(error)
    return "nothing"


def refused() -> list[str]:
    said = []
    for tensor, op in (
        (torch.zeros(2, dtype=torch.float8_e4m3fn, device=CUDA), dist.ReduceOp.SUM),
        (torch.zeros(2, device=CUDA), dist.ReduceOp.BAND),
    ):
        try:
            dist.all_reduce(tensor, op)
        except RuntimeError as error:
            said.append(str(error))
    return said


def model(device: torch.device) -> torch.nn.Module:
    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to(
        device
    )


def batch(step: int, part: int, parts: int) -> torch.Tensor:
    torch.manual_seed(100 + step)
    return torch.randn(6, 12).chunk(parts)[part]


def train(net: torch.nn.Module, part: int, parts: int, device: torch.device) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = net(batch(step, part, parts).to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def alone() -> list[torch.Tensor]:
    net = model(torch.device("cpu"))
    train(net, 0, 1, torch.device("cpu"))
    return [parameter.detach() for parameter in net.parameters()]


def ddp() -> None:
    net = model(CUDA)
    wrapped = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.001)
    train(wrapped, dist.get_rank(), dist.get_world_size(), CUDA)
    for expected, parameter in zip(alone(), net.parameters(), strict=True):
        torch.testing.assert_close(parameter.detach().cpu(), expected, atol=1e-5, rtol=1e-5)


def fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    net = model(CUDA)
    mesh = dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    train(net, dist.get_rank(), dist.get_world_size(), CUDA)
    for expected, parameter in zip(alone(), net.parameters(), strict=True):
        whole = parameter.full_tensor().detach().cpu()
        torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)


def timed_failure(numel: int) -> tuple[str, str, float]:
    """What an all_reduce raises, and when."""
    started = time.monotonic()
    tensor = torch.ones(numel, device=CUDA)
    try:
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - started
    return "nothing", str(tensor.sum().item()), time.monotonic() - started


def receive_failure(source: int) -> tuple[str, str]:
    try:
        dist.recv(torch.ones(3, device=CUDA), source)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def fail(what: str, number: int) -> None:
    """So many copies, waits or records of this process from now on, one fails; 0: none does."""
    getattr(EMULATION, f"emulatedCudaFail{what}")(ctypes.c_long(number))


def reductions_of_which_a_record_fails(number: int) -> list[str]:
    """What each of two all_reduce raises, or "well", where a record fails in the first one."""
    tensors = [torch.full((4,), value, device=CUDA) for value in (1.0, 100.0)]
    torch.cuda.synchronize()
    fail("Record", number)
    said = []
    for tensor in tensors:
        try:
            dist.all_reduce(tensor)
            said.append("well")
        except RuntimeError as error:
            said.append(str(error))
    fail("Record", 0)
    return said


def future_of_which_a_record_fails(number: int) -> str:
    tensor = torch.ones(4, device=CUDA)
    torch.cuda.synchronize()
    fail("Record", number)
    work = dist.all_reduce(tensor, async_op=True)
    try:
        work.get_future().wait()
    except RuntimeError as error:
        return str(error)
    finally:
        fail("Record", 0)
    return "well"


def messages_of_which_a_copy_fails(failing: int) -> list[str]:
    """What each of two messages from rank 0 to 1 raises, or "well", where the second of a message's
    three chunks cannot be copied on one of the two ranks."""
    tensors = [torch.full((3 << 19,), value, device=CUDA) for value in (1.0, 2.0)]
    torch.cuda.synchronize()
    fail("Copy", 2 if dist.get_rank() == failing else 0)
    said = []
    for tensor in tensors:
        try:
            dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)
            said.append("well")
        except RuntimeError as error:
            said.append(str(error))
    fail("Copy", 0)
    return said


def start_and_abort() -> str:
    """A rank aborts the group while it waits for what nobody sends."""
    work = dist.irecv(torch.ones(3, device=CUDA), 0)
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    try:
        work.wait()
    except Exception as error:
        return str(error)
    return "nothing"


def leave() -> None:
    dist.destroy_process_group()
