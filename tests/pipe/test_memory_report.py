"""The memory report of a Pipe's partitions, beside what a real run keeps alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from pipe_models import MODES, make_pipe
from torch import nn

import weft
from weft.pipe import NoChunk
from weft.pipe.skip import pop, skippable, stash

pytestmark = pytest.mark.usefixtures("alone")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64)),
        nn.Sequential(nn.BatchNorm1d(64), nn.Sigmoid(), nn.Linear(64, 16)),
    )


def kept_alive(pipe, x) -> int:
    """Bytes of the storages that saved-tensor hooks see alive after the forward, parameters aside."""
    own = {t.untyped_storage().data_ptr() for t in (*pipe.parameters(), *pipe.buffers())}
    alive: dict[int, tuple[int, int]] = {}

    class Packed:
        def __init__(self, tensor):
            self.tensor = tensor
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                alive[id(self)] = (storage.data_ptr(), storage.nbytes())
                weakref.finalize(self, alive.pop, id(self), None)

    with torch.autograd.graph.saved_tensors_hooks(Packed, lambda packed: packed.tensor):
        output = pipe(x).local_value()
    gc.collect()
    found = sum(size for _, size in set(alive.values()))
    output.sum().backward()
    return found


def test_what_it_says():
    pipe = make_pipe(model(), chunks=4, checkpoint="except_last")
    first, second = pipe.memory_report(torch.randn(30, 32)).partitions
    rows = 8  # of 30 in 4
    assert first.parameters == first.gradients == 4 * (32 * 64 + 64 + 64 * 64 + 64)
    assert (first.inputs, first.buffers) == (4 * rows * 32, 0)
    # Its input, which asks for no gradient but is needed for a weight's; the tanh's output.
    assert first.activations == 4 * rows * (32 + 64)
    assert second.inputs == 4 * rows * 64
    assert second.buffers == 4 * (64 + 64) + 8
    assert first.peak == 3 * first.inputs + first.activations
    assert first.total == 2 * first.parameters + first.peak


@pytest.mark.parametrize("mode", MODES)
def test_peaks_by_mode(mode):
    pipe = make_pipe(model(), chunks=5, checkpoint=mode)
    report = pipe.memory_report(torch.randn(20, 32))
    assert (report.micro_batches, report.checkpoint) == (5, mode)
    for one in report.partitions:
        checkpointed = {"never": 0, "except_last": 4, "always": 5}[mode]
        kept = 5 if mode == "never" else 1
        assert one.peak == checkpointed * one.inputs + kept * one.activations


def test_activations_are_those_of_a_real_run():
    """One stage: with several on the CPU, neighbours share what one gives the other."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8), nn.GELU()))
    pipe = make_pipe(layers, chunks=1, checkpoint="never")
    x = torch.randn(24, 32)
    (one,) = pipe.memory_report(x).partitions
    assert one.activations == kept_alive(pipe, x)


def test_nothing_is_changed():
    pipe = make_pipe(model(), chunks=2)
    x = torch.randn(8, 32)
    before = {name: value.clone() for name, value in pipe.state_dict().items()}
    state = torch.get_rng_state()
    pipe.memory_report(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in pipe.state_dict().items())
    assert all(parameter.grad is None for parameter in pipe.parameters())


def test_several_values_skips_and_what_is_not_split():
    @skippable(stash=["far"])
    class Give(nn.Module):
        def forward(self, x, table):
            yield stash("far", x * 2)
            return [x + table, 3]

    @skippable(pop=["far"])
    class Take(nn.Module):
        def forward(self, x, times):
            return x * times + (yield pop("far"))

    pipe = make_pipe(nn.Sequential(Give(), Take()), chunks=2)
    report = pipe.memory_report(torch.ones(4, 8), NoChunk(torch.ones(8)))
    assert [one.inputs for one in report.partitions] == [4 * (16 + 8), 4 * (16 + 16)]


def test_the_table():
    text = str(make_pipe(model(), chunks=2).memory_report(torch.randn(8, 32)))
    assert text.splitlines()[0].startswith("2 micro-batches, checkpoint=except_last")
    assert "0 on cpu" in text and "1 on cpu" in text
    assert len({len(line) for line in text.splitlines()[1:]}) == 1


def test_meta_and_what_is_refused():
    pipe = weft.Pipe(model().to("meta"), chunks=2)
    (one,) = pipe.memory_report(torch.empty(8, 32, device="meta")).partitions
    assert one.parameters > 0 and one.activations > 0
    with pytest.raises(TypeError, match="inputs do not have any tensors"):
        pipe.memory_report("a")
