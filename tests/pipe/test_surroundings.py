"""What is thread-local around the call reaches the stages: autocast, hooks, modes, labels."""

from __future__ import annotations

import contextlib
import contextvars
import threading

import pytest
import torch
from pipe_models import (
    MODES,
    WAYS,
    Counter,
    PipeAsLayer,
    assert_same,
    gradients,
    make_pipe,
    mlp,
    plain_copy,
)
from torch import nn

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_autocast(mode, way):
    dtypes = set()

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            y = self.linear(x)
            dtypes.add(y.dtype)
            return y

    torch.manual_seed(0)
    plain = nn.Sequential(Stage(), Stage())
    pipe = make_pipe(plain_copy(plain), way, chunks=3, checkpoint=mode)
    x = torch.randn(6, 4)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = pipe(x).local_value()
        output.float().sum().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = plain(x)
        expected.float().sum().backward()
        assert dtypes == {torch.bfloat16}
        assert_same(output, expected)
        assert_same(gradients(pipe), gradients(plain), atol=5e-2, rtol=5e-2)
        # A step, so that weights cast before it would show.
        with torch.no_grad():
            for parameter in (*pipe.parameters(), *plain.parameters()):
                parameter.add_(0.5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_saved_tensor_hooks(mode, way):
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    plain = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    pipe = make_pipe(plain_copy(plain), way, chunks=2, checkpoint=mode)
    x = torch.randn(4, 4)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = pipe(x).local_value()
    output.sum().backward()
    # Two micro-batches: Linear saves its input (the weight is no activation), Tanh its output; all of
    # them once, whether in the forward or in the recomputation.
    assert sum(t.shape == (2, 4) for t in packed) >= 4
    plain(x).sum().backward()
    assert_same(gradients(pipe), gradients(plain))


@pytest.mark.parametrize("way", WAYS)
def test_profiler_labels(way):
    pipe = make_pipe(mlp(), way, chunks=2)
    x = torch.randn(4, 4)
    with torch.profiler.profile() as profile:
        pipe(x).local_value().sum().backward()
    names = {event.name for event in profile.events()}
    assert {"weft::pipe.F0.mb0", "weft::pipe.F4.mb1", "weft::pipe.R0.mb0"} <= names
    assert {"weft::pipe.B4.mb1", "weft::pipe.B0.mb0"} <= names
    assert {"chunk0-part0", "chunk1-part4"} <= names  # upstream's


SCALE = contextvars.ContextVar("scale", default=1.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_context_variables(mode, way):
    """A stage and its recomputation have the caller's, and keep what they set to themselves."""

    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            scale = SCALE.get()
            SCALE.set(7.0)
            return x * self.weight * scale

    inner = make_pipe(nn.Sequential(Stage(), Stage()), way, checkpoint=mode)
    pipe = make_pipe(
        nn.Sequential(Stage(), PipeAsLayer(inner), Stage()), way, chunks=2, checkpoint=mode
    )
    for scale in (3.0, 2.0):
        pipe.zero_grad()
        token = SCALE.set(scale)
        output = pipe(torch.ones(2, 1)).local_value()
        assert SCALE.get() == scale
        SCALE.reset(token)
        assert_same(output, torch.full((2, 1), scale**4))
        output.sum().backward()
        assert_same(gradients(pipe), [torch.tensor(2 * scale**4)] * 4)
        assert SCALE.get() == 1.0


@pytest.mark.parametrize("way", WAYS)
def test_dispatch_modes(way):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        products = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.addmm.default:
                self.products += 1
            return function(*args, **(kwargs or {}))

    pipe = make_pipe(mlp(), way, chunks=2)
    with torch.no_grad(), Count() as count:
        pipe(torch.randn(4, 4))
    assert count.products == 6


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_used_by_the_calling_thread_alone(mode):
    """One object for several threads crashes where it is a dispatch mode."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Threads:
        def __init__(self):
            super().__init__()
            self.found = set()

        def call(self, function, types, args=(), kwargs=None):
            self.found.add(threading.get_ident())
            return function(*args, **(kwargs or {}))

    class DispatchThreads(Threads, TorchDispatchMode):
        __torch_dispatch__ = Threads.call

    class FunctionThreads(Threads, torch.overrides.TorchFunctionMode):
        __torch_function__ = Threads.call

    plain = mlp()
    plain(torch.ones(4, 4)).sum().backward()
    pipe = make_pipe(mlp(), "threads", chunks=2, checkpoint=mode)
    for forward, backward in (
        (DispatchThreads(), contextlib.nullcontext()),
        (contextlib.nullcontext(), DispatchThreads()),
        (FunctionThreads(), contextlib.nullcontext()),
    ):
        pipe.zero_grad()
        with forward:
            output = pipe(torch.ones(4, 4)).local_value()
        with backward:
            output.sum().backward()
        assert_same(gradients(pipe), gradients(plain))
        for threads in (forward, backward):
            if isinstance(threads, Threads):
                assert threads.found == {threading.get_ident()}
    assert pipe._engine.threads > 0  # the forward without a mode had them


def test_a_default_device_does_not_keep_stages_from_their_threads():
    found = set()

    class Stage(nn.Module):
        def forward(self, x):
            found.add(threading.get_ident())
            return x * torch.ones(4)

    with torch.device("cpu"):
        make_pipe(nn.Sequential(Stage(), Stage()), "threads")(torch.ones(4, 4))
    assert len(found) == 2


@pytest.mark.parametrize("mode", MODES)
def test_fake_tensors(mode):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        pipe = make_pipe(mlp(), "threads", chunks=2, checkpoint=mode)
        output = pipe(torch.randn(4, 4)).local_value()
        assert output.shape == (4, 3)
        output.sum().backward()
        assert all(parameter.grad is not None for parameter in pipe.parameters())


def test_flops_are_those_of_the_layers():
    from torch.utils.flop_counter import FlopCounterMode

    totals = []
    for model in (mlp(), PipeAsLayer(make_pipe(mlp(), "threads", chunks=2))):
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(4, 4)).sum().backward()
        totals.append(counter.get_total_flops())
    assert totals[0] == totals[1]


def test_a_graph_of_torch_export():
    model = PipeAsLayer(make_pipe(mlp(), "threads", chunks=2))
    exported = torch.export.export(model, (torch.ones(4, 4),), strict=False).module()
    x = torch.randn(4, 4)
    assert_same(exported(x), model(x))


@pytest.mark.parametrize("mode", MODES)
def test_module_hooks(mode):
    pipe = make_pipe(nn.Sequential(Counter(), Counter()), "threads", chunks=2, checkpoint=mode)
    seen = []
    pipe[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    pipe[1].register_forward_hook(lambda *_: seen.append("forward"))
    pipe(torch.randn(4, 4)).local_value().sum().backward()
    assert seen.count("backward") == 2
    assert seen.count("forward") == pipe[1].forwards


@pytest.mark.parametrize("mode", MODES)
def test_data_parallel(mode, tmp_path):
    """DDP around a Pipe: buckets are reduced, whatever the mode."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        plain = mlp()
        ddp = DistributedDataParallel(
            make_pipe(plain_copy(plain), "threads", chunks=3, checkpoint=mode)
        )
        buckets = []

        def hook(state, bucket):
            buckets.append(bucket.index())
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        ddp.register_comm_hook(None, hook)
        x = torch.randn(6, 4)
        for _ in range(3):
            ddp.zero_grad()
            buckets.clear()
            ddp(x).local_value().sum().backward()
            assert len(buckets) >= 1
        plain(x).sum().backward()
        assert_same(gradients(ddp.module), gradients(plain))
    finally:
        dist.destroy_process_group()
