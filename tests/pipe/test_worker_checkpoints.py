"""Checkpoints of pipelines over workers: into another division, in the background, on a full disk."""

from __future__ import annotations

import copy
import errno
import os
from pathlib import Path

import pytest
import torch
import worker_models as models
from torch import nn
from waiting import wait_until
from worker_pipes import CROSS_ENTROPY, gradients_of, pipe_of, same


def saved_and_loaded(folder: str) -> None:
    before = pipe_of("0112", 3, "1f1b")
    optimizer = before.optimizer(torch.optim.AdamW, lr=0.05)
    before.step(*models.batch(0), loss=CROSS_ENTROPY)
    optimizer.step()
    before.save_checkpoint(f"{folder}/here")
    before.save_checkpoint(f"{folder}/here")  # replaces the first
    after = pipe_of("2210", 3, "gpipe", seed=9)
    again = after.optimizer(torch.optim.AdamW, lr=0.1)
    after.load_checkpoint(f"{folder}/here")
    for pipe, one in ((before, optimizer), (after, again)):
        one.zero_grad()
        pipe.step(*models.batch(1), loss=CROSS_ENTROPY)
        one.step()
    same(before.state_dict(), after.state_dict())
    try:
        before.save_checkpoint("/proc/nowhere/here")
    except OSError:
        pass
    else:
        raise AssertionError("it was written to /proc")


def test_a_checkpoint_goes_into_another_division_bit_for_bit(group, tmp_path):
    group[0].call(saved_and_loaded, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def saved_in_the_background(folder: str) -> None:
    pipe = pipe_of("0122", 2, "1f1b")
    optimizer = pipe.optimizer(torch.optim.AdamW, lr=0.05)
    pipe.step(*models.batch(0), loss=CROSS_ENTROPY)
    optimizer.step()
    state, kept = copy.deepcopy(pipe.state_dict()), copy.deepcopy(optimizer.state_dict())
    checkpoint = pipe.save_checkpoint(f"{folder}/here", background=True)
    pipe.step(*models.batch(1), loss=CROSS_ENTROPY)
    optimizer.step()
    assert not torch.equal(pipe.state_dict()["0.weight"], state["0.weight"])
    checkpoint.wait()
    assert checkpoint.done()
    pipe.load_checkpoint(f"{folder}/here")
    same(pipe.state_dict(), state)
    for name, one in optimizer.state_dict()["parameters"].items():
        same(one["state"], kept["parameters"][name]["state"])
    pipe.save_checkpoint(f"{folder}/here", background=True)
    pipe.close()


def test_a_checkpoint_in_the_background_is_of_when_it_was_asked_for(group, tmp_path):
    group[0].call(saved_in_the_background, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def saved_after_one_that_did_not_begin(folder: str) -> None:
    pipe = pipe_of("0122", 2, "1f1b")
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.5)
    with pytest.raises(OSError):
        pipe.save_checkpoint("/proc/nowhere/here", background=True)
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    optimizer.step()
    state = copy.deepcopy(pipe.state_dict())
    pipe.save_checkpoint(f"{folder}/here")
    pipe.load_checkpoint(f"{folder}/here")
    same(pipe.state_dict(), state)
    pipe.close()


def test_a_checkpoint_that_did_not_begin_leaves_nothing_to_the_next(group, tmp_path):
    group[0].call(saved_after_one_that_did_not_begin, str(tmp_path))


def migrating() -> nn.Sequential:
    import weft

    remote = weft.WithDevice(nn.Sequential(models.Migrates()), "worker1/cpu")
    return nn.Sequential(models.Migrates(), remote)


def keeps_versions(folder: str) -> None:
    """A layer that would change a state of a former version finds that it is of its own."""
    import weft

    pipe = weft.Pipe(migrating(), schedule="1f1b")
    plain = nn.Sequential(models.Migrates(), nn.Sequential(models.Migrates()))
    state = plain.state_dict()
    pipe.load_state_dict(state)
    same(pipe.state_dict(), state)
    plain.load_state_dict(pipe.state_dict())
    same(plain.state_dict(), state)
    for background in (False, True):
        pipe.save_checkpoint(f"{folder}/here", background)
        pipe.load_checkpoint(f"{folder}/here")
        same(pipe.state_dict(), state)
    whole = nn.ModuleDict({"pipe": pipe})
    whole.load_state_dict(whole.state_dict())
    same(pipe.state_dict(), state)
    pipe.load_state_dict(dict(state))  # of no version
    assert torch.equal(pipe.state_dict()["1.0.weight"], torch.full((3,), 10.0))
    pipe.close()


def test_a_state_has_the_versions_of_its_modules(group, tmp_path):
    group[0].call(keeps_versions, str(tmp_path))


def cannot_be_loaded(folder: str) -> None:
    pipe = pipe_of("0122", 2, "1f1b")
    state = pipe.state_dict()
    with pytest.raises(
        RuntimeError, match=r"layer '2' of the Pipe: .*(\n.*)*size mismatch for 1\.bias"
    ):
        pipe.load_state_dict({**state, "2.1.bias": torch.ones(2)})
    with pytest.raises(
        FileNotFoundError, match=r"worker 'worker\d' finds no checkpoint in .*/nothing"
    ):
        pipe.load_checkpoint(f"{folder}/nothing")
    pipe.close()


def test_a_state_that_cannot_be_loaded_is_named(group, tmp_path):
    group[0].call(cannot_be_loaded, str(tmp_path))


def measures(scheduler: str) -> float:
    """The learning rate after steps of which each loss is as bad as the first."""
    pipe = pipe_of("0122", 2, "1f1b")
    former = pipe.optimizer(torch.optim.SGD, lr=8.0)
    former.scheduler(torch.optim.lr_scheduler.StepLR, step_size=1)
    optimizer = pipe.optimizer(torch.optim.SGD, lr=1.0)
    assert optimizer.state_dict()["scheduler"] is None
    assert "scheduler" not in pipe._parts._set_up
    made = optimizer.scheduler(getattr(torch.optim.lr_scheduler, scheduler), patience=0)
    for _ in range(2):
        made.step(1.0)
    (rate,) = made.get_last_lr()
    pipe.close()
    return rate


def test_a_scheduler_of_the_last_optimizer_gets_what_it_steps_by(group):
    assert group[0].call(measures, "ReduceLROnPlateau") == pytest.approx(0.1)


def are_replaced() -> None:
    pipe = pipe_of("0122", 2, "1f1b")
    rates = torch.optim.lr_scheduler
    former = pipe.optimizer(torch.optim.SGD, lr=8.0)
    first = former.scheduler(rates.ExponentialLR, gamma=0.5)
    second = former.scheduler(rates.MultiStepLR, milestones=[3])
    for use in (first.step, first.get_last_lr):
        with pytest.raises(RuntimeError, match=r"this ExponentialLR .* has made a MultiStepLR"):
            use()
    last = pipe.optimizer(torch.optim.AdamW, lr=0.1)
    with pytest.raises(RuntimeError, match=r"this MultiStepLR of the Pipe is gone"):
        second.step()
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    state = copy.deepcopy(pipe.state_dict())
    kept = last.state_dict()
    uses = (former.step, former.zero_grad, former.state_dict, lambda: former.load_state_dict(kept))
    for use in (*uses, lambda: former.scheduler(rates.StepLR, step_size=1)):
        with pytest.raises(RuntimeError, match=r"this SGD .* has made a AdamW"):
            use()
    same(pipe.state_dict(), state)
    last.step()
    pipe.close()


def test_what_another_optimizer_or_scheduler_has_replaced_says_so(group):
    group[0].call(are_replaced)


def chained(optimizer: torch.optim.Optimizer, gamma: float):
    rates = torch.optim.lr_scheduler
    several = [rates.ExponentialLR(optimizer, gamma), rates.MultiStepLR(optimizer, [3], 0.1)]
    return rates.ChainedScheduler(several, optimizer)


def in_turn(optimizer: torch.optim.Optimizer, gamma: float):
    rates = torch.optim.lr_scheduler
    several = [rates.ConstantLR(optimizer, 0.5), rates.ExponentialLR(optimizer, gamma)]
    return rates.SequentialLR(optimizer, several, [2])


def have_several_rates(folder: str, way: str) -> None:
    """Also after a checkpoint."""
    several = {"chained": chained, "in turn": in_turn}[way]
    own = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    plain = several(own, gamma=0.5)
    for number in range(2):
        pipe = pipe_of("0122", 2, "1f1b")
        optimizer = pipe.optimizer(torch.optim.SGD, lr=0.1)
        scheduler = optimizer.scheduler(several, gamma=0.5)
        if number:
            pipe.load_checkpoint(f"{folder}/here")
        for _ in range(2):
            optimizer.step()
            own.step()
            scheduler.step()
            plain.step()
            assert scheduler.get_last_lr() == plain.get_last_lr()
        pipe.save_checkpoint(f"{folder}/here")
        pipe.close()


@pytest.mark.parametrize("way", ["chained", "in turn"])
def test_a_function_makes_one_scheduler_of_several(group, tmp_path, way):
    group[0].call(have_several_rates, str(tmp_path), way)


def has_an_odd_state(folder: str) -> None:
    import weft

    layers = [nn.Linear(4, 4), weft.WithDevice(models.HasExtraState(4, 3), "worker1/cpu")]
    pipe = weft.Pipe(nn.Sequential(*layers), schedule="1f1b")
    said = r"load_checkpoint would not read .*: 1\._extra_state \(Unsupported .*Hidden"
    with pytest.raises(RuntimeError, match=said):
        pipe.save_checkpoint(f"{folder}/here")
    pipe.at_workers(knows_hidden, True)
    try:
        pipe.save_checkpoint(f"{folder}/here")
        pipe.load_checkpoint(f"{folder}/here")
    finally:
        pipe.at_workers(knows_hidden, False)
    pipe.close()


def knows_hidden(_pipe: str, does: bool) -> None:
    if does:
        torch.serialization.add_safe_globals([models.Hidden])
    else:
        torch.serialization.clear_safe_globals()


def test_a_state_that_would_not_be_read_is_not_written(group, tmp_path):
    group[0].call(has_an_odd_state, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def has_the_order_of_the_layers() -> None:
    state, plain = pipe_of("2110", 2, "1f1b").state_dict(), models.plain().state_dict()
    assert list(state) == list(plain)
    of_modules = [key for key in state._metadata if key]
    assert of_modules == [key for key in plain._metadata if key]


def test_a_state_has_the_order_of_the_layers(group):
    group[0].call(has_the_order_of_the_layers)


def frozen_after_the_optimizer_was_made() -> None:
    import weft

    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    model = nn.Sequential(first, second, weft.WithDevice(nn.Tanh(), "worker1/cpu"))
    pipe = weft.Pipe(model, chunks=2, schedule="1f1b")
    optimizer = pipe.optimizer(torch.optim.AdamW, lr=0.05)
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict()["parameters"])
    first.requires_grad_(False)
    after = optimizer.state_dict()["parameters"]
    assert after.keys() == before.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}
    for name, one in after.items():
        same(one["state"], before[name]["state"])
    optimizer.load_state_dict({"parameters": before, "scheduler": None})
    for name, one in optimizer.state_dict()["parameters"].items():
        same(one["state"], before[name]["state"])
    pipe.close()


def test_an_optimizers_state_keeps_its_names_when_layers_are_frozen(group):
    group[0].call(frozen_after_the_optimizer_was_made)


def loads_other_states() -> None:
    """A state of other parameters changes nothing."""
    pipe = pipe_of("0122", 2, "1f1b")
    optimizer = pipe.optimizer(torch.optim.AdamW, lr=0.05)
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    found = before["parameters"]
    larger = {**before, "parameters": {**found, "9.weight": found["0.weight"]}}
    smaller = {**before, "parameters": {"0.weight": found["0.weight"]}}
    plain = torch.optim.AdamW(models.plain().parameters()).state_dict()
    for state, error, said in (
        (larger, KeyError, "has 9.weight, which this Pipe's optimizer does not have"),
        (smaller, KeyError, "the optimizer's state lacks 0.bias"),
        (
            plain,
            ValueError,
            "not the state of a Pipe's optimizer, .* it has 'state', 'param_groups'",
        ),
    ):
        with pytest.raises(error, match=said):
            optimizer.load_state_dict(state)
    after = optimizer.state_dict()["parameters"]
    for name, one in found.items():
        same(after[name]["state"], one["state"])
    pipe.close()


def test_an_optimizers_state_of_other_parameters_is_refused(group):
    group[0].call(loads_other_states)


def in_groups(parameters, lr: float, **options: object) -> torch.optim.AdamW:
    """Biases first, and without decay: none of them at a worker that has none."""
    biases = [one for one in parameters if one.dim() == 1]
    weights = [one for one in parameters if one.dim() > 1]
    groups = [{"params": biases, "weight_decay": 0.0, "lr": 2 * lr}, {"params": weights}]
    return torch.optim.AdamW(groups, lr=lr, **options)


def keeps_groups(folder: str) -> None:
    plain = models.plain()
    own = in_groups(list(plain.parameters()), lr=0.05)
    rates = torch.optim.lr_scheduler
    own_scheduler = rates.StepLR(own, step_size=1, gamma=0.5)
    for number, places in enumerate(["0122", "2011", "1200"]):
        pipe = pipe_of(places, 2, "1f1b")
        optimizer = pipe.optimizer(in_groups, lr=0.3 if number else 0.05)
        scheduler = optimizer.scheduler(rates.StepLR, step_size=1, gamma=0.5)
        if number:
            pipe.load_checkpoint(f"{folder}/here")
        models.one_after_the_other(plain, *models.batch(number), CROSS_ENTROPY, 2)
        pipe.step(*models.batch(number), loss=CROSS_ENTROPY)
        for one in (own, optimizer, own_scheduler, scheduler):
            one.step()
        for one in (own, optimizer):
            one.zero_grad()
        same(pipe.state_dict(), plain.state_dict())
        for name, kept in optimizer.state_dict()["parameters"].items():
            assert kept["state"]["exp_avg"].shape == plain.get_parameter(name).shape
        pipe.save_checkpoint(f"{folder}/here")
        optimizer.load_state_dict(optimizer.state_dict())
        pipe.close()
    pipe = pipe_of("0122", 2, "1f1b")
    pipe.optimizer(torch.optim.AdamW, lr=0.1)
    with pytest.raises(RuntimeError, match=r"one parameter group .* other options for each"):
        pipe.load_checkpoint(f"{folder}/here")
    pipe.close()


def only_own_groups(parameters, lr: float) -> torch.optim.SGD:
    groups = [{"params": [one for one in parameters if one.dim() == dims]} for dims in (1, 2)]
    return torch.optim.SGD([one for one in groups if one["params"]], lr=lr)


def others(parameters, lr: float) -> torch.optim.SGD:
    return torch.optim.SGD([*parameters, nn.Parameter(torch.ones(1))], lr=lr)


def has_odd_groups() -> None:
    import weft

    there = weft.WithDevice(nn.Linear(4, 4, bias=False), "worker1/cpu")
    pipe = weft.Pipe(nn.Sequential(nn.Linear(4, 4), there), schedule="1f1b")
    with pytest.raises(ValueError, match=r"not among those that it got"):
        pipe.optimizer(others, lr=0.1)
    optimizer = pipe.optimizer(only_own_groups, lr=0.1)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.scheduler(torch.optim.lr_scheduler.StepLR, step_size=1)
    with pytest.raises(RuntimeError, match=r"is of 2 parameter groups, .* 'worker1' has 1"):
        optimizer.load_state_dict(optimizer.state_dict())
    pipe.close()


def test_groups_that_cannot_be_told_apart_are_refused(group):
    group[0].call(has_odd_groups)


def test_an_optimizer_in_groups_goes_into_another_division(group, tmp_path):
    group[0].call(keeps_groups, str(tmp_path))


def cannot_be_written(folder: str) -> str:
    """All workers but the first cannot write."""
    pipe = pipe_of("0122", 2, "1f1b")
    pipe.save_checkpoint(f"{folder}/here")
    begin_with(fails_to_write, pipe, f"{folder}/here")
    with pytest.raises(RuntimeError, match="no space") as caught:
        pipe.save_checkpoint(f"{folder}/here")
    pipe.save_checkpoint(f"{folder}/here")
    pipe.close()
    return str(caught.value)


def begin_with(write, pipe, path: str):
    """A checkpoint in the background of which this writes the shards."""
    from weft.pipe._driver import checkpoint

    before = checkpoint.shards.write_shard
    checkpoint.shards.write_shard = write
    try:
        return pipe.save_checkpoint(path, background=True)
    finally:
        checkpoint.shards.write_shard = before


def fails_to_write(pipe: str, folder: str, number: int, snapshot: bool) -> None:
    if number:
        raise RuntimeError("no space")


def test_a_checkpoint_that_failed_in_the_background_is_told_by_the_next(group, tmp_path):
    group[0].call(cannot_be_written, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def the_first_fails(pipe: str, folder: str, number: int, snapshot: bool) -> None:
    if number == 0:
        raise OSError(errno.ENOSPC, "no space")
    above = Path(folder).parent
    wait_until((above / "go").exists, "the first has failed", 90)
    (Path(folder) / f"shard-{number}.pt").touch()
    (above / f"written-{number}").touch()


def is_told_once(folder: str) -> None:
    pipe = pipe_of("0122", 2, "1f1b")
    checkpoint = begin_with(the_first_fails, pipe, f"{folder}/failed")
    with pytest.raises(OSError):
        checkpoint._shards["worker0"].wait()
    (Path(folder) / "go").touch()
    said = r"(?s)worker 'worker0' could not write .*/failed: .*no space"
    with pytest.raises(RuntimeError, match=said) as caught:
        checkpoint.wait()
    assert isinstance(caught.value.__cause__, OSError)
    written = [path.name for path in Path(folder).iterdir()]
    assert sorted(written) == ["go", "written-1", "written-2"]  # nobody was still writing
    pipe.save_checkpoint(f"{folder}/here")
    pipe.load_checkpoint(f"{folder}/here")
    pipe.close()


def test_a_checkpoint_that_failed_is_told_once_after_all_have_ended(group, tmp_path):
    group[0].call(is_told_once, str(tmp_path))


def saved_through_a_link(folder: str) -> None:
    """The folder that it leads to is replaced, or made."""
    latest, run = Path(folder) / "latest", Path(folder) / "run"
    latest.symlink_to("run")
    pipe = pipe_of("0122", 2, "1f1b")
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.5)
    for number in range(3):
        pipe.step(*models.batch(number), loss=CROSS_ENTROPY)
        optimizer.step()
        pipe.save_checkpoint(latest)
        state = copy.deepcopy(pipe.state_dict())
        pipe.load_checkpoint(run)
        same(pipe.state_dict(), state)
    assert latest.is_symlink()
    pipe.close()


def test_a_checkpoint_goes_where_a_link_leads(group, tmp_path):
    group[0].call(saved_through_a_link, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "run"]


def goes_below_the_current_folder(folder: str) -> None:
    """The driver's, which the workers are not in."""
    pipe = pipe_of("0122", 2, "1f1b")
    before = os.getcwd()
    os.chdir(folder)
    try:
        pipe.save_checkpoint("relative")
        state = copy.deepcopy(pipe.state_dict())
        pipe.load_state_dict({name: one + 1 for name, one in state.items()})
        pipe.load_checkpoint("relative")
    finally:
        os.chdir(before)
    same(pipe.state_dict(), state)
    pipe.close()


def test_a_relative_path_begins_at_the_drivers_current_folder(group, tmp_path):
    group[0].call(goes_below_the_current_folder, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["relative"]


def cannot_be_put(folder: str) -> None:
    pipe = pipe_of("0122", 2, "1f1b")
    file = Path(folder) / "file"
    file.write_text("mine")
    for background in (False, True):
        with pytest.raises(NotADirectoryError, match=r"save_checkpoint: .*/file is no folder"):
            pipe.save_checkpoint(file, background)
    assert file.read_text() == "mine"
    here = Path(folder) / "here"
    pipe.save_checkpoint(here)
    with pytest.raises(RuntimeError, match=r"could not be put at .*/here: "):
        begin_with(takes_the_folder_away, pipe, str(here)).wait()
    with pytest.raises(Exception, match="pickle"):
        begin_with(lambda *_: None, pipe, str(here))
    pipe.load_checkpoint(here)
    pipe.close()


def takes_the_folder_away(pipe: str, folder: str, number: int, snapshot: bool) -> None:
    if number == 0:
        Path(folder).rmdir()


def test_a_checkpoint_that_cannot_be_put_leaves_what_was_there(group, tmp_path):
    group[0].call(cannot_be_put, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "here"]


def is_put_back(folder: str) -> None:
    """As a driver leaves it that is killed between the two renames."""
    pipe = pipe_of("0122", 2, "1f1b")
    here = Path(folder) / "here [1]"
    pipe.save_checkpoint(here)
    state = copy.deepcopy(pipe.state_dict())
    here.rename(f"{here}.killed.before")
    pipe.load_checkpoint(here)
    same(pipe.state_dict(), state)
    here.rename(f"{here}.killed.before")
    (Path(folder) / "here [1].another.before").mkdir()
    with pytest.raises(FileNotFoundError, match="finds no checkpoint"):
        pipe.load_checkpoint(here)
    pipe.close()


def test_a_checkpoint_that_was_put_aside_is_put_back(group, tmp_path):
    group[0].call(is_put_back, str(tmp_path))


def writes_no_copy(folder: str) -> None:
    from weft.pipe._workers import shards

    pipe = pipe_of("0122", 2, "1f1b")
    for worker in ("worker0", "worker1"):
        with pytest.raises(RuntimeError, match="has no copy of its state to write"):
            pipe._parts.begin(worker, shards.write_shard, folder, 0, True).wait()
    pipe.close()


def test_without_a_copy_of_the_state_nothing_is_written(group, tmp_path):
    group[0].call(writes_no_copy, str(tmp_path))
    assert not list(tmp_path.iterdir())


def is_of_a_larger_model(folder: str) -> None:
    """Also where a layer is larger in itself, at a worker."""
    import weft

    def pipe_with(*layers: nn.Module):
        placed = [weft.WithDevice(one, f"worker{at}/cpu") for at, one in enumerate(layers, 1)]
        return weft.Pipe(nn.Sequential(nn.Linear(4, 4), *placed), schedule="1f1b")

    small = pipe_with(nn.Sequential(nn.Linear(4, 4)))
    small.step(*models.batch(), loss=CROSS_ENTROPY)
    state = copy.deepcopy(small.state_dict())
    larger = pipe_with(nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 3))
    larger.save_checkpoint(f"{folder}/larger")
    with pytest.raises(KeyError, match=r"/larger has 2\.weight, 2\.bias, .*does not have"):
        small.load_checkpoint(f"{folder}/larger")
    same(small.state_dict(), state)  # nobody has taken up a part
    within = pipe_with(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)))
    within.save_checkpoint(f"{folder}/within")
    with pytest.raises(KeyError, match=r"/within has 1\.1\.weight, 1\.1\.bias, .*does not have"):
        small.load_checkpoint(f"{folder}/within")
    assert all(one is not None for one in gradients_of(small).values())
    for pipe in (small, larger, within):
        pipe.close()


def test_a_checkpoint_of_a_larger_model_is_refused(group, tmp_path):
    group[0].call(is_of_a_larger_model, str(tmp_path))
