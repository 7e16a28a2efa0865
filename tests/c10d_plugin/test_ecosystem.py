"""What PyTorch builds on process groups, on Weft: data parallel training, sharding, meshes, checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from ranks import Ranks


@pytest.fixture(scope="module")
def ranks():
    with Ranks(2) as made:
        yield made


# What ranks run.


def model():
    import torch

    torch.manual_seed(7)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.Linear(16, 4)
    )


def batch(rank: int, step: int):
    import torch

    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(6, 8, generator=generator), torch.randn(6, 4, generator=generator)


def reference(steps: int, size: int, accumulate: int = 1):
    """The parameters after training on all ranks' batches in one process."""
    import torch

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(0, steps, accumulate):
        for inner in range(accumulate):
            for rank in range(size):
                inputs, wanted = batch(rank, step + inner)
                loss = torch.nn.functional.mse_loss(net(inputs), wanted)
                (loss / size).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(net.parameters())


def ddp(variant: str) -> None:
    import contextlib

    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    import weft

    rank, size = dist.get_rank(), dist.get_world_size()
    net = DistributedDataParallel(
        model(),
        gradient_as_bucket_view=variant in ("bucket views", "weft's hook"),
        static_graph=variant == "static graph",
        # PowerSGD calls collectives from callbacks: with several buckets under way the ranks would
        # call them in different orders, on any backend that runs callbacks on threads.
        bucket_cap_mb=25 if variant == "powerSGD hook" else 0.001,
    )
    loose = False
    if variant == "bf16 hook":
        net.register_comm_hook(None, default_hooks.bf16_compress_hook)
        loose = True
    elif variant == "allreduce hook":
        net.register_comm_hook(None, default_hooks.allreduce_hook)
    elif variant.startswith("weft's hook"):
        net.register_comm_hook(None, weft.ddp_hook)
    elif variant == "powerSGD hook":
        state = powerSGD_hook.PowerSGDState(
            None, start_powerSGD_iter=2, matrix_approximation_rank=4
        )
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        loose = True
    if variant == "zero":
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, lr=0.1)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    compiled = variant.endswith("compiled without buckets")
    if compiled:
        torch._dynamo.config.optimize_ddp = "python_reducer"
        torch._dynamo.config.compiled_autograd = True
    forward = torch.compile(net, backend="aot_eager") if compiled else net
    accumulate = 2 if variant == "no_sync" else 1
    for step in range(4):
        inputs, wanted = batch(rank, step)
        quiet = accumulate == 2 and step % 2 == 0
        with net.no_sync() if quiet else contextlib.nullcontext():
            torch.nn.functional.mse_loss(forward(inputs), wanted).backward()
        if not quiet:
            optimizer.step()
            optimizer.zero_grad()
    if compiled:
        torch._dynamo.config.optimize_ddp = True
        torch._dynamo.config.compiled_autograd = False
    tolerance = {"rtol": 0.5, "atol": 0.1} if loose else {}
    for got, expected in zip(net.parameters(), reference(4, size, accumulate), strict=True):
        torch.testing.assert_close(got, expected, **tolerance)


def fsdp2(allocated: bool) -> None:
    """``allocated``: in buffers of the group's."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    net = model()
    for layer in net:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    if allocated:
        device = torch.device("cpu")
        assert dist.group.WORLD._get_backend(device).supports_tensor_alloc(device)
        for module in net.modules():
            if isinstance(module, FSDPModule):
                module.set_allocate_memory_from_process_group_for_comm(True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        inputs, wanted = batch(rank, step)
        torch.nn.functional.mse_loss(net(inputs), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()
    for got, expected in zip(net.parameters(), reference(4, size), strict=True):
        torch.testing.assert_close(got.full_tensor(), expected)


def dtensors() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("x",))
    whole = torch.arange(24.0).reshape(6, 4)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    other = distribute_tensor(whole.t().contiguous(), mesh, [Replicate()])
    assert torch.equal((sharded @ other).full_tensor(), whole @ whole.t())
    assert sharded.sum().full_tensor() == whole.sum()
    assert dist.get_backend(mesh.get_group("x")) == "weft"


def functional_collectives(compiled: bool) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as collectives

    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    total = sum(range(1, size + 1))

    def step(tensor):
        summed = collectives.all_reduce(tensor * 2, "sum", group)
        return collectives.all_gather_tensor(summed + 1, 0, group)

    run = torch.compile(step, backend="aot_eager") if compiled else step
    got = run(torch.full((3,), rank + 1.0))
    assert torch.equal(got, torch.full((3 * size,), 2.0 * total + 1))
    scattered = collectives.reduce_scatter_tensor(torch.ones(2 * size), "avg", 0, group)
    assert torch.equal(scattered + 0, torch.ones(2))
    swapped = collectives.all_to_all_single(torch.full((size,), float(rank)), None, None, group)
    assert torch.equal(swapped + 0, torch.arange(float(size)))


def autograd_functions() -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.nn.functional as functional

    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    (functional.all_reduce(x) * (rank + 1)).sum().backward()
    assert x.grad.eq(sum(range(1, size + 1))).all()
    x = torch.full((2,), rank + 1.0, requires_grad=True)
    torch.stack(functional.all_gather(x)).sum().backward()
    assert x.grad.eq(size).all()
    inputs = [torch.full((2,), float(rank), requires_grad=True) for _ in range(size)]
    outputs = functional.all_to_all([torch.empty(2) for _ in range(size)], inputs)
    assert [o[0].item() for o in outputs] == list(range(size))
    (torch.stack(outputs).sum() * (rank + 1)).backward()
    assert [i.grad[0].item() for i in inputs] == [other + 1 for other in range(size)]
    x = torch.ones(2 * size, requires_grad=True)
    output = functional.reduce_scatter(torch.empty(2), list(x.chunk(size)))
    output.sum().backward()
    assert x.grad.eq(1).all()


def checkpoint(folder: str) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(40.0).reshape(10, 4)
    state = {"weight": distribute_tensor(whole, mesh, [Shard(0)]), "step": 5}
    dcp.save(state, checkpoint_id=folder)
    again = {"weight": distribute_tensor(torch.zeros(10, 4), mesh, [Shard(1)]), "step": 0}
    dcp.load(again, checkpoint_id=folder)
    assert again["step"] == 5 and torch.equal(again["weight"].full_tensor(), whole)


def gather_sharded() -> None:
    """On a machine without GPU: torch asks the backend for a device to gather on."""
    import torch
    import torch.distributed as dist
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    if torch.cuda.device_count() > 0:
        return
    placements = [f"rank:{rank}/cpu" for rank in range(dist.get_world_size())]
    whole = sharded_tensor.ones(ChunkShardingSpec(0, placements), 4, 2)
    out = torch.zeros(4, 2) if dist.get_rank() == 0 else None
    whole.gather(0, out)
    assert out is None or torch.equal(out, torch.ones(4, 2))


def pipeline_in_the_shape_of_a_v(schedule: str) -> None:
    """The two stages in the middle are on one rank, which sends to itself."""
    import copy

    import torch
    import torch.distributed as dist
    from torch.distributed import pipelining

    rank, count = dist.get_rank(), 2 * dist.get_world_size()
    torch.manual_seed(3)
    layers = [
        torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _stage in range(count)
    ]
    inputs, wanted = torch.randn(2 * count, 6), torch.randn(2 * count, 6)
    stages = [
        pipelining.PipelineStage(copy.deepcopy(layers[i]), i, count, torch.device("cpu"))
        for i in (rank, count - 1 - rank)
    ]
    loss = torch.nn.functional.mse_loss
    runner = getattr(pipelining, schedule)(stages, count, loss_fn=loss)
    if rank == 0:
        runner.step(inputs, target=wanted)
    else:
        runner.step()
    loss(torch.nn.Sequential(*layers)(inputs), wanted).backward()
    for stage in stages:
        for got, of_one in zip(
            stage.submod.parameters(), layers[stage.stage_index].parameters(), strict=True
        ):
            torch.testing.assert_close(got.grad, of_one.grad)


def samplers() -> None:
    import torch
    import torch.distributed as dist

    sampler = torch.utils.data.DistributedSampler(range(10), shuffle=False)
    everything: list = [None] * dist.get_world_size()
    dist.all_gather_object(everything, list(sampler))
    assert sorted(place for places in everything for place in places) == list(range(10))


@pytest.mark.parametrize(
    "variant",
    [
        "plain",
        "bucket views",
        "static graph",
        "no_sync",
        "allreduce hook",
        "bf16 hook",
        "powerSGD hook",
        "weft's hook",
        "weft's hook, compiled without buckets",
        "zero",
    ],
)
def test_ddp(ranks, variant):
    ranks.all(ddp, variant)


@pytest.mark.parametrize("allocated", [False, True], ids=["ordinary", "allocated"])
def test_fsdp2(ranks, allocated):
    ranks.all(fsdp2, allocated)


def test_device_mesh_and_dtensor(ranks):
    ranks.all(dtensors)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_functional_collectives(ranks, compiled):
    ranks.all(functional_collectives, compiled, timeout=110)


def test_autograd_through_collectives(ranks):
    ranks.all(autograd_functions)


def test_distributed_checkpoint(ranks, tmp_path):
    ranks.all(checkpoint, str(tmp_path / "saved"))


def test_sharded_tensors_are_gathered(ranks):
    ranks.all(gather_sharded)


def test_monitored_barrier_by_device(tmp_path):
    run_script(
        tmp_path,
        """
        import torch.distributed as dist, weft
        rendezvous = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1}
        dist.init_process_group("cpu:weft,cuda:weft", **rendezvous)
        dist.monitored_barrier()
        """,
    )


@pytest.mark.parametrize("schedule", ["ScheduleZBVZeroBubble", "ScheduleDualPipeV"])
def test_pipelining_in_the_shape_of_a_v(ranks, schedule):
    ranks.all(pipeline_in_the_shape_of_a_v, schedule)


def test_distributed_sampler(ranks):
    ranks.all(samplers)


def mismatched_tensors(what: str) -> None:
    import torch
    import torch.distributed as dist

    odd = dist.get_rank() == 1
    if what == "shape":
        dist.all_reduce(torch.ones(3 if odd else 2))
    else:
        dist.all_reduce(torch.ones(2, dtype=torch.int32 if odd else torch.float32))


@pytest.mark.parametrize("what", ["operation", "shape", "type"])
def test_detail_debugging_names_the_mismatch(what):
    from test_different_calls import mismatched_call

    told = {"operation": ("BROADCAST",), "shape": ("[2]", "[3]"), "type": ("Float", "Int")}[what]
    with Ranks(2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as ranks:
        if what == "operation":
            errors = ranks.all_fail(mismatched_call)
        else:
            errors = ranks.all_fail(mismatched_tensors, what)
        text = "".join(error.message for error in errors)
        assert all("mismatch" in error.message for error in errors), text
        assert all(word in text for word in told), text


def all_reduce_of_a_negative_view() -> None:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(4, dtype=torch.complex64).mul_(1j).conj().imag
    dist.all_reduce(tensor)
    assert tensor.is_neg() and tensor.eq(-dist.get_world_size()).all()


def test_detail_debugging_takes_negative_views():
    with Ranks(2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as ranks:
        ranks.all(all_reduce_of_a_negative_view)


def what_weft_adds_to_torch() -> None:
    import torch
    import torch.distributed as dist

    import weft

    dist.monitored_barrier()
    before = dist.group.WORLD._get_sequence_number_for_group()
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    net.register_comm_hook(None, weft.ddp_hook)
    net(torch.ones(1, 2) + dist.get_rank()).sum().backward()
    assert net.module.weight.grad.eq(1.5).all()
    assert net._get_ddp_logging_data()["backend_name"] == "weft"
    assert dist.group.WORLD._get_sequence_number_for_group() > before


def test_detail_debugging_leaves_what_weft_adds():
    with Ranks(2, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}) as ranks:
        ranks.all(what_weft_adds_to_torch)


ELASTIC = """
    import os, signal, sys
    import torch, torch.distributed as dist
    import weft

    dist.init_process_group("weft")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    if attempt == 0 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    print(f"rank {rank} attempt {attempt} sum {tensor[0].item():.0f}", flush=True)
    dist.destroy_process_group()
"""


def run_script(tmp_path, text: str, *launch: str, timeout: float = 100) -> str:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, *launch, str(script)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_torchrun_restarts_the_group_after_a_kill(tmp_path):
    launch = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
    ]
    out = run_script(tmp_path, ELASTIC, *launch)
    assert "rank 0 attempt 1 sum 2" in out and "rank 1 attempt 1 sum 2" in out


@pytest.mark.parametrize("backend", ["", "None, ", "backend=None, "])
def test_weft_run_serves_a_group_of_no_named_backend(tmp_path, backend):
    """DDP on two ranks; each way of naming none."""
    out = run_script(
        tmp_path,
        f"""
        import torch, torch.distributed as dist
        dist.init_process_group({backend}init_method="env://")
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        net(torch.ones(1, 2) + dist.get_rank()).sum().backward()
        assert net.module.weight.grad.eq(1.5).all()
        assert dist.group.WORLD._get_sequence_number_for_group() > 0
        print(dist.get_backend() + "\\n", end="", flush=True)
        dist.destroy_process_group()
        """,
        *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
        *["-m", "weft.run", "--process-group"],
    )
    assert out.split() == ["weft", "weft"]


def test_weft_run_serves_a_device_mesh_that_makes_the_group(tmp_path):
    out = run_script(
        tmp_path,
        """
        import torch, torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("x", "y"))
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        net(torch.ones(1, 2) + dist.get_rank()).sum().backward()
        assert net.module.weight.grad.eq(1.5).all()
        names = dist.get_backend(), dist.get_backend(mesh.get_group("y"))
        print(" ".join(names) + "\\n", end="", flush=True)  # one write: two ranks have one output
        dist.destroy_process_group()
        """,
        *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
        *["-m", "weft.run", "--process-group"],
    )
    assert out.split() == ["weft"] * 4


def test_weft_run_makes_gloo_mean_weft(tmp_path):
    out = run_script(
        tmp_path,
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        pair = dist.new_group([0], backend="cpu:gloo")
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, group=pair)
        print(dist.get_backend(), dist.get_backend_config(pair))
        """,
        *["-m", "weft.run", "--process-group"],
    )
    assert out.split() == ["weft", "cpu:weft"]


def wait_later() -> None:
    """What torch registers for tensors that a graph waits for later, it forgets when they are there."""
    import torch
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional

    size = dist.get_world_size()
    registered = torch._C._distributed_c10d._get_work_registry_size
    with functional.allow_inflight_collective_as_graph_input_ctx():
        later, now = torch.ones(2), torch.ones(2)
        work = dist.all_reduce(later, async_op=True)
        assert registered() == 1
        work.wait()
        assert registered() == 0
        dist.all_reduce(now)
        assert registered() == 0
        now = torch.ops._c10d_functional.wait_tensor(now)
        dist.group.WORLD.allreduce_coalesced([torch.ones(2)]).wait()
        assert registered() == 0
    assert later.eq(size).all() and now.eq(size).all()


def test_a_graph_that_waits_later(ranks):
    ranks.all(wait_later)
