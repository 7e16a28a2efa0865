"""Scripted stages on workers: their tasks run in C++, and the numbers are those of one process."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import scripted_models as scripted
import torch
import torch.distributed.rpc as rpc
import worker_models as models
from torch import nn
from worker_pipes import CROSS_ENTROPY, gradients_of, held_anywhere, pipe_of_layers, same

MEAN = nn.MSELoss


def in_cpp(pipe) -> list[bool]:
    """Of the workers in the order of their names."""
    found = pipe.at_workers(scripted.ran_in_cpp)
    return [found[worker] for worker in sorted(found)]


def one_process(layers, inputs, targets, loss, chunks: int) -> tuple[torch.Tensor, nn.Module]:
    """What one process makes of the same micro-batches, one after the other."""
    from weft.pipe._partition import PipeSequential

    plain = PipeSequential(*layers)
    return models.one_after_the_other(plain, inputs, targets, loss, chunks), plain


def trains_equally(places: str, chunks: int, schedule: str, checkpoint: str) -> None:
    loss = torch.jit.script(CROSS_ENTROPY)
    pipe = pipe_of_layers(scripted.layers(), places, chunks, schedule, checkpoint)
    plain = nn.Sequential(*scripted.layers())
    optimizer = pipe.optimizer(torch.optim.AdamW, lr=0.05)
    own = torch.optim.AdamW(plain.parameters(), lr=0.05)
    for turn in range(3):
        inputs, targets = models.batch(turn)
        optimizer.zero_grad()
        own.zero_grad()
        given = inputs.clone().requires_grad_()
        wanted = inputs.clone().requires_grad_()
        found = pipe.step(given, targets, loss=loss)
        expected = models.one_after_the_other(plain, wanted, targets, loss, chunks)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)  # the sum's order
        same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
        assert torch.equal(given.grad, wanted.grad)
        optimizer.step()
        own.step()
    same(pipe.state_dict(), plain.state_dict())
    assert all(in_cpp(pipe))
    assert held_anywhere(pipe) == 0
    pipe.eval()
    with torch.no_grad():
        output = pipe(inputs).to_here()
        plain.eval()
        assert torch.equal(output, torch.cat([plain(one) for one in inputs.chunk(chunks)]))
    assert all(in_cpp(pipe))
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("places", ["0000", "0122", "1212", "1111"])
def test_training_equals_the_micro_batches_one_after_the_other(group, places, schedule, checkpoint):
    for chunks in (1, 4):
        group[0].call(trains_equally, places, chunks, schedule, checkpoint)


@pytest.mark.parametrize("schedule", ["interleaved", "zb"])
def test_other_schedules(group, schedule):
    group[0].call(trains_equally, "1212", 2, schedule, "never")


def passes(make: Callable[[], list[nn.Module]], places: str, cpp: list[bool]) -> None:
    """The layers of ``make``, which are the same each time, over workers."""
    loss, layers = torch.jit.script(MEAN()), make()
    inputs = models.batch()[0].requires_grad_()
    wanted = inputs.detach().clone().requires_grad_()
    pipe = pipe_of_layers(make(), places, 3, "1f1b", "except_last")
    found = pipe.step(inputs, torch.zeros(models.ROWS, 4), loss=loss)
    expected, plain = one_process(layers, wanted, torch.zeros(models.ROWS, 4), loss, 3)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
    assert torch.equal(inputs.grad, wanted.grad)
    assert in_cpp(pipe) == cpp
    pipe.close()


def splits_some(scripts: bool) -> None:
    """Those that cannot be split come after those before them, whose second halves wait."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), models.OneOrTwo()]
    plain, loss = nn.Sequential(*copy.deepcopy(layers)), MEAN()
    if scripts:
        layers, loss = list(map(torch.jit.script, layers)), torch.jit.script(loss)
    pipe = pipe_of_layers(layers, "01", 8, "zb", "never")
    inputs, targets = torch.randn(24, 4), torch.randn(24, 4)
    pipe.step(inputs, targets, loss=loss)
    models.one_after_the_other(plain, inputs, targets, MEAN(), 8)
    same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
    assert in_cpp(pipe) == [scripts, scripts]
    pipe.close()


@pytest.mark.parametrize("scripts", [False, True])
def test_a_backward_that_is_not_split_comes_in_its_turn(group, scripts):
    group[0].call(splits_some, scripts)


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 4)


def scripted_layers(*layers: nn.Module) -> Callable[[], list[nn.Module]]:
    return lambda: [torch.jit.script(one) for one in (linear(), *layers)]


def passes_values(places: str) -> None:
    for give, take in (
        (scripted.SplitsTensors(), scripted.JoinsTensors()),
        (scripted.Lists(), scripted.TakesList()),
        (scripted.Nests(), scripted.TakesNested()),
        (scripted.GivesSparse(), scripted.TakesSparse()),
    ):
        passes(scripted_layers(give, take), places, [True] * 3)


@pytest.mark.parametrize("places", ["012", "120"])
def test_values_between_scripted_stages(group, places):
    group[0].call(passes_values, places)


def different_outputs(places: str, scripts: bool) -> None:
    for layer, says in (
        (scripted.ListsRows(), ""),
        (scripted.NamesRows(), ""),
        (scripted.NamesTheNumber(), "3.*2"),
        (scripted.OrdersByRows(), "high.*low.*low.*high"),
    ):
        layers = [nn.Identity(), layer]
        pipe = pipe_of_layers(
            list(map(torch.jit.script, layers)) if scripts else layers, places, 2, "gpipe", "never"
        )
        with torch.no_grad():
            assert pipe(torch.ones(4, 3)).to_here() is not None
            with pytest.raises(
                Exception, match=f"(?s)micro-batches have different outputs.*{says}"
            ):
                pipe(torch.ones(5, 3)).to_here()
            assert pipe(torch.ones(4, 3)).to_here() is not None
        assert in_cpp(pipe) == [scripts] * len(set(places))
        pipe.close()


@pytest.mark.parametrize("scripts", [False, True])
@pytest.mark.parametrize("places", ["01", "10"])
def test_outputs_that_differ_from_one_micro_batch_to_the_next_are_refused(group, places, scripts):
    group[0].call(different_outputs, places, scripts)


def mixes() -> None:
    script, python = torch.jit.script, scripted.PythonNests()
    passes(
        lambda: [script(linear()), python, script(scripted.TakesNested())],
        "012",
        [True, False, True],
    )
    passes(
        lambda: [linear(), script(scripted.Nests()), scripted.PythonTakes()],
        "120",
        [False, False, True],
    )


def test_scripted_stages_between_python_stages(group):
    group[0].call(mixes)


def falls_back() -> None:
    """What needs Python runs there, at the worker that it concerns."""
    layers = scripted.layers()
    inputs, targets = models.batch()
    pipe = pipe_of_layers(layers, "0122", 2, "1f1b", "never")
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)  # a Python loss, at worker 2
    assert in_cpp(pipe) == [True, True, False]
    output = pipe(inputs).to_here()  # with a graph
    assert in_cpp(pipe) == [False, False, False]
    del output
    rpc.rpc_sync("worker1", scripted.hook_all_modules, args=(True,))
    pipe.step(inputs, targets, loss=torch.jit.script(CROSS_ENTROPY))
    rpc.rpc_sync("worker1", scripted.hook_all_modules, args=(False,))
    assert in_cpp(pipe) == [True, False, True]
    pipe.close()


def test_what_needs_python_runs_in_python(group):
    group[0].call(falls_back)


def draws_again() -> None:
    """A recomputation draws the numbers of its forward, and leaves the generator as it was."""
    layers = [torch.jit.script(scripted.Drops()) for _ in range(2)]
    inputs = models.batch()[0]
    loss = torch.jit.script(MEAN())
    found = []
    for checkpoint in ("never", "always"):
        pipe = pipe_of_layers(copy.deepcopy(layers), "12", 3, "1f1b", checkpoint)
        for worker in ("worker1", "worker2"):
            rpc.rpc_sync(worker, scripted.seeded, args=(5,))
        losses = [pipe.step(inputs, inputs, loss=loss) for _ in range(2)]
        assert in_cpp(pipe) == [True, True]
        found.append((losses, gradients_of(pipe)))
        pipe.close()
    (losses, gradients), (losses_again, gradients_again) = found
    assert all(map(torch.equal, losses, losses_again))
    same(gradients, gradients_again)


def test_random_numbers_of_a_recomputation(group):
    group[0].call(draws_again)


def fails(at: str) -> None:
    layers = scripted.layers()
    layers[2] = torch.jit.script(nn.Sequential(scripted.FailsAt(2), nn.Linear(6, 6)))
    inputs, targets = models.batch()
    loss = torch.jit.script(CROSS_ENTROPY)
    pipe = pipe_of_layers(layers, at, 4, "1f1b", "never")
    with pytest.raises(RuntimeError) as caught:
        pipe.step(inputs, targets, loss=loss)
    worker = f"worker{at[2]}"
    assert f"on worker '{worker}', failed in the forward of micro-batch 1: " in str(caught.value)
    assert "the layer fails on purpose" in str(caught.value)
    assert held_anywhere(pipe) == 0
    pipe.step(inputs, targets, loss=loss)
    pipe.close()


@pytest.mark.parametrize("at", ["0122", "1102", "0110"])
def test_a_failure_ends_the_mini_batch_everywhere(group, at):
    group[0].call(fails, at)


def takes_another_type(places: str) -> None:
    layers = [torch.jit.script(scripted.ScalesByANumber()), torch.jit.script(nn.Linear(4, 4))]
    pipe = pipe_of_layers(layers, places, 2, "1f1b", "never")
    inputs, loss = models.batch()[0], torch.jit.script(MEAN())
    with pytest.raises(
        RuntimeError, match=rf"(?s)stage 0 of the Pipe, on worker 'worker{places[0]}'"
    ):
        pipe.step((inputs, "text"), inputs, loss=loss)
    pipe.step((inputs, 2), inputs, loss=loss)
    assert in_cpp(pipe) == [True, True]
    pipe.close()


@pytest.mark.parametrize("places", ["01", "10"])
def test_an_input_of_another_type_names_the_stage(group, places):
    group[0].call(takes_another_type, places)


def refuses_changes() -> None:
    layers = [torch.jit.script(scripted.AddsInPlace()), torch.jit.script(nn.Linear(4, 4))]
    inputs = models.batch()[0]
    pipe = pipe_of_layers(layers, "12", 2, "gpipe", "always")
    with pytest.raises(RuntimeError, match=r"stage 0 .*changes its input in place"):
        pipe.step(inputs, inputs, loss=torch.jit.script(MEAN()))
    pipe.close()


def test_a_change_of_what_a_recomputation_needs_is_refused(group):
    group[0].call(refuses_changes)


def has_a_loss_that_changes_the_output(place: str) -> None:
    inputs, loss = models.batch()[0], scripted.InPlaceLoss()
    for checkpoint in ("never", "always"):
        layer = nn.Linear(4, 4)
        pipe = pipe_of_layers([torch.jit.script(layer)], place, 3, "gpipe", checkpoint)
        plain = nn.Sequential(copy.deepcopy(layer))
        for _ in range(2):
            pipe.step(inputs, inputs, loss=torch.jit.script(loss))
            models.one_after_the_other(plain, inputs, inputs, loss, 3)
        same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
        assert all(in_cpp(pipe))
        pipe.close()


@pytest.mark.parametrize("place", ["0", "1"])
def test_a_loss_may_change_the_output_in_place(group, place):
    group[0].call(has_a_loss_that_changes_the_output, place)


def is_recorded() -> None:
    inputs, targets = models.batch()
    pipe = pipe_of_layers(scripted.layers(), "0122", 4, "1f1b", "never")
    with pipe.record() as timeline:
        pipe.step(inputs, targets, loss=torch.jit.script(CROSS_ENTROPY))
    assert all(in_cpp(pipe))
    events = timeline.typical.events
    assert {(e.kind, e.stage, e.micro_batch) for e in events} == {
        (kind, stage, part)
        for kind in ("forward", "backward")
        for stage in range(3)
        for part in range(4)
    }
    assert all(0 < event.begin <= event.end for event in events)
    pipe.close()


def test_a_timeline_has_the_tasks_that_ran_in_cpp(group):
    group[0].call(is_recorded)


def test_a_loss_with_another_part_is_sent_anew():
    from weft.pipe._workers.scripted import SavedLoss

    loss = torch.jit.script(scripted.Measured())
    three, none = torch.full((1,), 3.0), torch.zeros(1)
    assert SavedLoss.of(loss).load()(three, none) == 9
    loss.measure = torch.jit.script(scripted.Absolute())
    assert SavedLoss.of(loss).load()(three, none) == loss(three, none) == 3
