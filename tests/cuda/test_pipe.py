"""Pipes with partitions on CUDA devices give what the plain model gives.

Neighbours on one device are one partition, so several partitions of a device alternate with others:
where there is one GPU, with the host's.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from devices import EACH, NEIGHBOUR, OTHER_CUDA, merged, need_two, partitions
from emulation import EMULATION
from pipe_models import MODES, WAYS, assert_same, gradients, make_pipe, plain_copy
from torch import nn

from weft.pipe import NoChunk, WithDevice
from weft.pipe.skip import pop, skippable, stash

pytestmark = pytest.mark.usefixtures("alone")

LAYOUTS = {
    "one": (OTHER_CUDA,),
    "both": ("cuda:0", NEIGHBOUR),
    "to and fro": (NEIGHBOUR, "cuda:0", NEIGHBOUR, "cuda:0"),
    "host between": ("cuda:0", "cpu", OTHER_CUDA),
    "host around": ("cpu", OTHER_CUDA, "cuda:0", "cpu"),
    "in turn": ("cuda:0", "cpu", "cuda:0", "cpu"),
}
CLOSE = {"atol": 1e-5, "rtol": 1e-4}


def block(wide=8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, wide), nn.GELU(), nn.Linear(wide, 4))


def blocks(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(block() for _ in range(count)))


def placed(plain: nn.Sequential, devices) -> nn.Sequential:
    """A copy of the model with each child on its device."""
    model = plain_copy(plain)
    return nn.Sequential(*(child.to(device) for child, device in zip(model, devices, strict=True)))


def on_host(tensors):
    return [tensor.cpu() if tensor is not None else None for tensor in tensors]


def steps(model, forward, device, count):
    """Losses and parameters of a short training."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(7, 4, generator=generator).to(device).requires_grad_()
        optimizer.zero_grad()
        loss = forward(x).square().mean()
        loss.backward()
        optimizer.step()
        losses += [loss.detach(), x.grad]
    return on_host([*losses, *(p.detach() for p in model.parameters())])


def check_training(devices, count=3, **arguments):
    plain = blocks(len(devices))
    pipe = make_pipe(placed(plain, devices), **arguments)
    assert [str(device) for device in pipe.devices] == merged(devices)
    found = steps(pipe, lambda x: pipe(x).local_value(), devices[0], count)
    assert_same(found, steps(plain, plain, "cpu", count), **CLOSE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_equals_the_plain_model(layout, way, mode):
    check_training(LAYOUTS[layout], way=way, chunks=3, checkpoint=mode)


@pytest.mark.parametrize("layout", ["both", "host between"])
def test_training_under_twenty_delays(layout, delays):
    check_training(LAYOUTS[layout], count=1, way="threads", chunks=2, checkpoint="except_last")


def test_evaluation_under_twenty_delays(delays):
    plain = blocks(3)
    pipe = make_pipe(placed(plain, LAYOUTS["host between"]), "threads", chunks=4)
    x = torch.randn(8, 4)
    with torch.no_grad():
        assert_same(pipe(x.to("cuda:0")).local_value().cpu(), plain(x), **CLOSE)


@pytest.mark.parametrize("mode", MODES)
def test_scripted_stages(mode):
    plain = blocks(2)
    model = nn.Sequential(*(torch.jit.script(child) for child in placed(plain, LAYOUTS["both"])))
    pipe = make_pipe(model, "threads", chunks=3, checkpoint=mode)
    x = torch.randn(6, 4)
    pipe(x.to("cuda:0")).local_value().sum().backward()
    plain(x).sum().backward()
    assert_same(on_host(gradients(pipe)), gradients(plain), **CLOSE)


class OnCurrentDevice(nn.Module):
    """Makes a tensor on "cuda", whichever device that is for the thread."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(4, device="cuda")


@need_two("the current device is another one")
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("mode", ["never", "always"])
@pytest.mark.parametrize("way", WAYS)
def test_a_stage_runs_with_its_device_as_the_current_one(way, mode, create_graph):
    model = nn.Sequential(
        nn.Linear(4, 4, device="cuda:0"), WithDevice(OnCurrentDevice(), OTHER_CUDA)
    )
    pipe = make_pipe(model, way, chunks=2, checkpoint=mode)
    x = torch.ones(4, 4, device="cuda:0", requires_grad=True)
    output = pipe(x).local_value()
    assert_same([output.detach().cpu()], [(model[0](x) + 1).detach().cpu()], **CLOSE)
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=create_graph)
    assert gradient.shape == x.shape
    assert torch.cuda.current_device() == 0


def dropouts() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential()
    for device in ("cuda:0", OTHER_CUDA, "cpu", "cuda:0"):
        model.append(nn.Linear(4, 4, device=device))
        model.append(WithDevice(nn.Dropout(0.5), device))
    return model


def dropped(mode, way):
    """Gradients of a model with dropout on all devices, and the generators' states after it."""
    pipe = make_pipe(dropouts(), way, chunks=4, checkpoint=mode)
    torch.manual_seed(1)
    pipe(torch.ones(8, 4, device="cuda:0")).local_value().square().sum().backward()
    states = [torch.cuda.get_rng_state(device) for device in EACH]
    return on_host(gradients(pipe)), [torch.get_rng_state(), *states]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["except_last", "always"])
def test_dropout_is_the_same_in_every_mode(mode, way):
    expected, states = dropped("never", "inline")
    found, after = dropped(mode, way)
    assert_same(found, expected)
    assert all(torch.equal(one, other) for one, other in zip(states, after, strict=True))


def test_dropout_is_repeated_under_twenty_delays(delays):
    assert_same(dropped("always", "threads"), dropped("never", "threads"))


class SeesAutocast(nn.Module):
    """Notes the types that its layer computes in."""

    def __init__(self, device):
        super().__init__()
        self.layer = nn.Linear(4, 4, device=device)
        self.types = []

    def forward(self, x):
        y = self.layer(x)
        self.types.append((torch.is_autocast_enabled("cuda"), y.dtype))
        return y


def check_autocast(mode):
    torch.manual_seed(0)
    model = nn.Sequential(SeesAutocast("cuda:0"), SeesAutocast(OTHER_CUDA))
    plain = plain_copy(model).to("cuda:0")
    pipe = make_pipe(model, "threads", chunks=2, checkpoint=mode)
    x = torch.randn(6, 4, device="cuda:0")
    with torch.autocast("cuda", torch.bfloat16):
        output = pipe(x).local_value()
        expected = plain(x)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    expected.float().sum().backward()
    assert_same(on_host(gradients(pipe)), on_host(gradients(plain)), atol=2e-2, rtol=2e-2)
    runs = 2 + {"never": 0, "except_last": 1, "always": 2}[mode]
    for stage in model:
        assert stage.types == [(True, torch.bfloat16)] * runs


@pytest.mark.parametrize("mode", MODES)
def test_autocast_holds_on_every_device_and_in_recomputations(mode):
    check_autocast(mode)


def test_autocast_under_twenty_delays(delays):
    check_autocast("always")


def check_deferred_batch_norm(devices, mode):
    # Of several only the first sees what it sees in the plain model: inputs of whole batches.
    plain = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.BatchNorm1d(4)))
    pipe = make_pipe(
        placed(plain, devices), "threads", chunks=3, checkpoint=mode, deferred_batch_norm=True
    )
    for seed in range(2):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed)) * 2 + 5
        plain(x)
        pipe(x.to(devices[0])).local_value().sum().backward()
    found, expected = pipe[2], plain[1][1]
    assert_same(found.running_mean.cpu(), expected.running_mean, **CLOSE)
    assert_same(found.running_var.cpu(), expected.running_var, **CLOSE)
    assert found.num_batches_tracked == 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("devices", [("cpu", "cuda:0"), partitions(OTHER_CUDA, "cuda:0")])
def test_deferred_batch_norm(devices, mode):
    check_deferred_batch_norm(devices, mode)


def test_deferred_batch_norm_under_twenty_delays(delays):
    check_deferred_batch_norm((NEIGHBOUR, "cuda:0"), "except_last")


@skippable(stash=["far"])
class Stash(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        yield stash("far", y)
        return y.tanh()


@skippable(pop=["far"])
class Pop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        far = yield pop("far")
        return self.layer(x) * far


def check_skip(devices, mode):
    torch.manual_seed(0)
    plain = nn.Sequential(Stash(), nn.Linear(4, 4), Pop())
    pipe = make_pipe(placed(plain, devices), "threads", chunks=3, checkpoint=mode)
    x = torch.randn(6, 4)
    output = pipe(x.to(devices[0])).local_value()
    expected = plain(x)
    assert_same(output.cpu(), expected, **CLOSE)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert_same(on_host(gradients(pipe)), gradients(plain), **CLOSE)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "devices",
    [
        partitions("cuda:0", OTHER_CUDA, "cuda:0"),
        ("cuda:0", "cpu", OTHER_CUDA),
        ("cpu", OTHER_CUDA, "cpu"),
    ],
)
def test_skips_across_devices(devices, mode):
    check_skip(devices, mode)


def test_skips_under_twenty_delays(delays):
    check_skip(("cuda:0", "cpu", OTHER_CUDA), "except_last")


class Call(nn.Module):
    """A stage with a weight on a device, and any function."""

    def __init__(self, function, device):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0, device=device))
        self.function = function

    def forward(self, *values):
        return self.function(self.weight, *values)


def give(weight, x, mask):
    y = x * weight
    return {"pair": (y, y), "rows": [y[:, ::2], len(x)], "mask": mask > 0}


def take(weight, values):
    one, same = values["pair"]
    assert one is same  # what is one tensor there is one here
    (rows, count), mask = values["rows"], values["mask"]
    assert {t.device for t in (one, rows, mask)} == {weight.device}
    return one * same * weight + rows.sum() * mask, count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "devices", [partitions("cuda:0", OTHER_CUDA), ("cpu", OTHER_CUDA), (OTHER_CUDA, "cpu")]
)
def test_structured_values_across_devices(devices, mode):
    model = nn.Sequential(Call(give, devices[0]), Call(take, devices[1]))
    pipe = make_pipe(model, "threads", chunks=2, checkpoint=mode)
    x, mask = torch.randn(5, 4), torch.tensor([1.0, -1.0, 1.0, 1.0])
    output, counts = pipe(x.to(devices[0]), NoChunk(mask.to(devices[0]))).local_value()
    assert list(counts) == [3, 2]
    expected = torch.cat([8 * p * p + 2 * p[:, ::2].sum() * (mask > 0) for p in x.chunk(2)])
    assert_same(output.cpu(), expected, **CLOSE)
    output.sum().backward()
    assert all(grad is not None for grad in gradients(pipe))


class Fails(nn.Module):
    """Raises when it is told to, in a forward or in a recomputation."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.runs, self.fails_at = 0, None

    def forward(self, x):
        self.runs += 1
        if self.runs == self.fails_at:
            raise LookupError("not today")
        return self.layer(x)


@pytest.mark.parametrize("fails_at", [2, 5])
@pytest.mark.parametrize("way", WAYS)
def test_a_stage_that_raises_leaves_a_pipe_that_works(way, fails_at):
    plain = nn.Sequential(block(), Fails(), block())
    model = placed(plain, ("cuda:0", NEIGHBOUR, "cuda:0"))
    pipe = make_pipe(model, way, chunks=3, checkpoint="always")
    model[1].fails_at = fails_at
    x = torch.randn(6, 4)
    with pytest.raises(LookupError, match="not today"):
        pipe(x.to("cuda:0")).local_value().sum().backward()
    pipe.zero_grad()
    pipe(x.to("cuda:0")).local_value().sum().backward()
    plain(x).sum().backward()
    assert_same(on_host(gradients(pipe)), gradients(plain), **CLOSE)


def check_double_backward(mode):
    plain = blocks(3)
    pipe = make_pipe(
        placed(plain, ("cuda:0", OTHER_CUDA, "cpu")), "threads", chunks=2, checkpoint=mode
    )
    x = torch.randn(4, 4)
    for model, device in ((lambda x: pipe(x).local_value(), "cuda:0"), (plain, "cpu")):
        given = x.to(device).requires_grad_()
        (grad,) = torch.autograd.grad(model(given).square().sum(), given, create_graph=True)
        grad.square().sum().backward()
    assert_same(on_host(gradients(pipe)), gradients(plain), **CLOSE)


@pytest.mark.parametrize("mode", MODES)
def test_double_backward(mode):
    check_double_backward(mode)


def test_retained_graphs_give_the_same_gradients_twice():
    pipe = make_pipe(placed(blocks(2), LAYOUTS["both"]), "threads", chunks=2, checkpoint="always")
    loss = pipe(torch.randn(4, 4, device="cuda:0")).local_value().square().sum()
    loss.backward(retain_graph=True)
    first = gradients(pipe)
    loss.backward()
    assert_same(gradients(pipe), [2 * grad for grad in first])


@pytest.mark.skipif(EMULATION is None, reason="peer access is switched off for emulated devices")
@need_two("they have no access to each other")
def test_devices_without_access_to_each_other():
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k",
         "equals_the_plain_model and fro-threads"],
        env={**os.environ, "EMULATED_CUDA_PEER_ACCESS": "0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout
