"""Pipelines whose stages are on CUDA devices of workers, with device maps and through the host."""

from __future__ import annotations

import copy

import pytest
import torch
from cuda_workers import CudaGroup
from devices import FIRST, OTHER_CUDA, SECOND, need_two
from emulation import copy_late, seed
from torch import nn

THERE = f"worker1/{OTHER_CUDA}"
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
LAYOUTS = {
    "one each": ("worker0/cuda:0", THERE),
    "both of one": ("worker1/cuda:0", THERE),
    "to and fro": (THERE, "worker0/cuda:0", "worker1/cuda:0"),
    "host between": ("worker1/cuda:0", "worker0/cpu", THERE),
}


@pytest.fixture(scope="module")
def group():
    with CudaGroup({}) as group:
        yield group
        group.end()


def layers(count: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(count)]


def trains_as_in_one_process(places: tuple[str, ...], schedule: str, checkpoint: str) -> None:
    import weft

    plain = nn.Sequential(*layers(len(places)))
    placed = [
        weft.WithDevice(layer, place)
        for layer, place in zip(copy.deepcopy(plain), places, strict=True)
    ]
    pipe = weft.Pipe(nn.Sequential(*placed), 3, checkpoint, schedule=schedule)
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.05, momentum=0.9)
    own = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9)
    for turn in range(3):
        generator = torch.Generator().manual_seed(turn)
        inputs, targets = (torch.randn(7, 4, generator=generator) for _ in range(2))
        optimizer.zero_grad()
        own.zero_grad()
        loss = pipe.step(inputs, targets, loss=nn.MSELoss())
        expected = nn.functional.mse_loss(plain(inputs), targets)
        expected.backward()
        torch.testing.assert_close(loss, expected.detach(), **CLOSE)
        optimizer.step()
        own.step()
    for name, value in pipe.state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name], **CLOSE)
    output = pipe(inputs).to_here()
    torch.testing.assert_close(output.cpu(), plain(inputs).detach(), **CLOSE)
    pipe.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_is_as_in_one_process(seeded, layout):
    for schedule, checkpoint in (("gpipe", "never"), ("1f1b", "except_last"), ("zb", "never")):
        seeded[0].call(trains_as_in_one_process, LAYOUTS[layout], schedule, checkpoint)


class OnCurrentDevice(nn.Module):
    """Makes a tensor on "cuda", whichever device that is for the thread."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + torch.ones(4, device="cuda")


def runs_on_its_device(checkpoint: str) -> None:
    import weft

    stages = [weft.WithDevice(OnCurrentDevice(), place) for place in ("worker0/cuda:0", THERE)]
    pipe = weft.Pipe(nn.Sequential(*stages), 2, checkpoint, schedule="1f1b")
    loss = pipe.step(torch.ones(4, 4), torch.zeros(4, 4), loss=nn.MSELoss())
    assert loss.item() == 9
    pipe.close()


@need_two("the current device is another one")
@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_a_stage_runs_with_its_device_as_the_current_one(group, checkpoint):
    group[0].call(runs_on_its_device, checkpoint)


class Late(nn.Module):
    """Work that takes a while on its device."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x * self.weight + 1
        return x


def summed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output * target).sum()


def targets_on_a_device() -> None:
    """They come, late, on the streams of the call; the stages run on others, and wait for no device."""
    import weft

    pipe = weft.Pipe(nn.Sequential(weft.WithDevice(Late(), THERE)), 2, schedule="gpipe")
    targets = torch.full((4, 256), 0.0, device="cuda:0")
    for step in range(3):
        copy_late(targets, torch.full_like(targets, float(step)))
        loss = pipe.step(torch.full((4, 256), 2.0), targets, loss=summed, reduction="sum")
        assert loss.item() == 1024 * step * 6
    pipe.close()


def test_targets_on_a_device(watched):
    watched[0].call(targets_on_a_device)


def outputs_that_are_fetched_later() -> None:
    """The next mini-batch takes memory while an output is still joined."""
    import weft

    pipe = weft.Pipe(nn.Sequential(weft.WithDevice(Late(), THERE)), 2, schedule="gpipe")
    outputs = []
    for step in range(4):
        outputs.append(pipe(torch.full((4, 256), float(step))))
        assert outputs[-1].rpc_sync().dim() == 2  # it is being joined
    for step, output in enumerate(outputs):
        assert output.to_here().sum().item() == 1024 * (step + 4)
    pipe.close()


def test_outputs_that_are_fetched_later(seeded):
    seeded[0].call(outputs_that_are_fetched_later)


def layers_on_a_device() -> None:
    """They come, late, on the streams of the call that builds the stage."""
    import weft

    late = Late().to("cuda:0")
    for step in range(3):
        with torch.no_grad():
            copy_late(late.weight, torch.full_like(late.weight, float(step)))
        pipe = weft.Pipe(nn.Sequential(weft.WithDevice(late, THERE)), schedule="gpipe")
        output = pipe(torch.ones(4, 256)).to_here()
        expected = 1.0
        for _ in range(4):
            expected = expected * step + 1
        assert output.sum().item() == 1024 * expected
        pipe.close()


def test_layers_on_a_device(watched):
    watched[0].call(layers_on_a_device)


class FailsAtLast(nn.Module):
    """Raises in the forward of the second micro-batch, when the first one's backward is queued."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x[0, 0] > 0:
            raise LookupError("not today")
        return x * 1


def gradients_of_a_mini_batch_that_failed() -> None:
    import weft

    late = Late()
    stages = [
        weft.WithDevice(late, THERE),
        weft.WithDevice(FailsAtLast(), "worker0/cpu"),
    ]
    pipe = weft.Pipe(nn.Sequential(*stages), 2, "never", schedule="1f1b")
    x = torch.cat([torch.full((2, 256), -8.0), torch.ones(2, 256)])
    for _ in range(3):
        with pytest.raises(RuntimeError, match="not today"):
            pipe.step(x, torch.ones(4, 256), loss=summed, reduction="sum")
        pipe.clip_grad_norm_(1.0)
    pipe.close()


def test_gradients_of_a_mini_batch_that_failed(seeded):
    seeded[0].call(gradients_of_a_mini_batch_that_failed)


def many_inputs() -> None:
    """More than torch's pool has streams, so that one gets the memory that another left."""
    import weft

    stages = [weft.WithDevice(Late(), f"worker1/cuda:{device}") for device in (SECOND, FIRST)]
    pipe = weft.Pipe(nn.Sequential(*stages), 150, schedule="gpipe")
    x = torch.arange(150.0, device="cuda:0").repeat_interleave(64).reshape(150, 64)
    for _ in range(2):
        assert torch.equal(pipe(x).to_here().cpu(), x.cpu() + 8)
    pipe.close()


def test_memory_of_an_input_lives_until_the_stage_has_read_it():
    """Through host memory: an event of another process would order more than it has to."""
    with CudaGroup({"WEFT_SHARED_MEMORY": "0"}) as group:
        for delays in range(3):
            group.all(seed, delays)
            group[0].call(many_inputs)
        group.end()
