"""Pipelines whose stages are on workers: real processes, against the same run in one process."""

from __future__ import annotations

import contextlib
import copy
import gc
import time

import pytest
import torch
import worker_models as models
from torch import nn
from workers import Group

CROSS_ENTROPY = nn.CrossEntropyLoss()


@pytest.fixture(scope="module")
def group():
    with Group(3) as workers:
        yield workers
        workers.shutdown()


# What the driver, worker 0, runs.


def pipe_of(places: str, chunks: int, schedule: str, checkpoint: str = "never", seed: int = 0):
    """A Pipe of the four layers, each at the worker with that digit."""
    import weft

    placed = [
        layer if place == "0" else weft.WithDevice(layer, f"worker{place}/cpu")
        for layer, place in zip(models.layers(seed), places, strict=True)
    ]
    return weft.Pipe(nn.Sequential(*placed), chunks, checkpoint, schedule=schedule)


def held_anywhere(pipe) -> int:
    return sum(pipe.at_workers(held_here).values())


def held_here(pipe: str) -> int:
    from weft.pipe._workers.part import part_of

    part = part_of(pipe)
    assert len(part.arrivals) == 0
    return sum(stage.held for stage in part.stages.values())


def runs_alive(pipe: str) -> int:
    from weft.pipe._workers.run import Run

    return sum(isinstance(one, Run) for one in gc.get_objects())


def collects(on: bool) -> None:
    (gc.enable if on else gc.disable)()


def gradients_here(pipe: str) -> dict[str, torch.Tensor]:
    from weft.pipe._workers.part import part_of
    from weft.pipe._workers.state import _parameters

    return {name: parameter.grad for name, parameter in _parameters(part_of(pipe)).items()}


def gradients_of(pipe) -> dict[str, torch.Tensor]:
    return {
        name: grad
        for found in pipe.at_workers(gradients_here).values()
        for name, grad in found.items()
    }


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def trains_equally(places: str, chunks: int, schedule: str, checkpoint: str) -> None:
    pipe, plain = pipe_of(places, chunks, schedule, checkpoint), models.plain()
    optimizer = pipe.optimizer(torch.optim.AdamW, lr=0.05)
    scheduler = optimizer.scheduler(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    own = torch.optim.AdamW(plain.parameters(), lr=0.05)
    own_scheduler = torch.optim.lr_scheduler.StepLR(own, step_size=1, gamma=0.5)
    for turn in range(3):
        inputs, targets = models.batch(turn)
        optimizer.zero_grad()
        own.zero_grad()
        loss = pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        expected = models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, chunks)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)  # the sum's order
        same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
        optimizer.step()
        own.step()
        scheduler.step()
        own_scheduler.step()
    assert scheduler.get_last_lr() == own_scheduler.get_last_lr()
    same(pipe.state_dict(), plain.state_dict())
    assert held_anywhere(pipe) == 0
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("places", ["0000", "0011", "0122", "1212", "1111"])
def test_training_equals_the_micro_batches_one_after_the_other(group, places, schedule, checkpoint):
    for chunks in (1, 3, 4):  # three and four do not divide the batch
        group[0].call(trains_equally, places, chunks, schedule, checkpoint)


@pytest.mark.parametrize("checkpoint", ["never", "except_last"])
def test_interleaved_stages(group, checkpoint):
    group[0].call(trains_equally, "1212", 2, "interleaved", checkpoint)


@pytest.mark.parametrize("places", ["0000", "0122", "1212"])
def test_the_two_halves_of_a_backward_make_the_same_gradients(group, places):
    for chunks in (1, 3, 4):
        group[0].call(trains_equally, places, chunks, "zb", "never")


def refuses_checkpoints() -> None:
    for checkpoint in ("except_last", "always"):
        with pytest.raises(ValueError, match="give it checkpoint='never'"):
            pipe_of("0122", 2, "zb", checkpoint)


def test_two_halves_and_a_recomputation_are_refused(group):
    group[0].call(refuses_checkpoints)


def is_recorded(places: str, schedule: str, path: str) -> None:
    pipe, (inputs, targets) = pipe_of(places, 4, schedule), models.batch()
    with pipe.record() as timeline:
        before = time.monotonic_ns()
        for _ in range(2):
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        after = time.monotonic_ns()
        with pytest.raises(RuntimeError, match="is being recorded already"), pipe.record():
            pass
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    assert len(timeline.mini_batches) == 2
    batch, stages = timeline.typical, len(pipe)
    assert {(e.kind, e.stage, e.micro_batch) for e in batch.events} == {
        (kind, stage, part)
        for kind in ("forward", "backward", "weights")
        for stage in range(stages)
        for part in range(4)
        if kind != "weights" or (schedule == "zb" and stage > 0)
    }
    ended = {(e.kind, e.stage, e.micro_batch): e.end for e in batch.events}
    for event in batch.events:  # processes of one host have one clock: the exchange must find that
        assert before - SLACK < event.begin <= event.end < after + SLACK
        if event.kind == "forward" and event.stage:
            assert event.begin > ended["forward", event.stage - 1, event.micro_batch] - SLACK
        if event.kind == "backward" and event.stage < stages - 1:
            assert event.begin > ended["backward", event.stage + 1, event.micro_batch] - SLACK
    figures = timeline.figures
    assert len(figures.busy) == len(timeline.lanes) == len(set(places))
    assert 0 <= figures.ideal_bubble <= figures.bubble + 1e-9 < 1
    assert "worker1" in timeline.save(path).read_text()
    pipe.close()


SLACK = 20_000_000  # of the clocks' exchange on a busy machine, in nanoseconds


@pytest.mark.parametrize(
    ("places", "schedule"),
    [
        ("0112", "gpipe"),
        ("1122", "1f1b"),
        ("1212", "interleaved"),
        ("1111", "1f1b"),
        ("0122", "zb"),
    ],
)
def test_a_timeline_has_every_task_of_all_workers(group, places, schedule, tmp_path):
    group[0].call(is_recorded, places, schedule, str(tmp_path / "run.svg"))


def defers(schedule: str, checkpoint: str) -> None:
    """Statistics are those of the mini-batch, as an nn.BatchNorm1d sees it whole."""
    import weft

    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(4) for _ in range(3)]
    plain = copy.deepcopy(norms[0])
    placed = [norms[0], *(weft.WithDevice(norm, "worker1/cpu") for norm in norms[1:])]
    pipe = weft.Pipe(nn.Sequential(*placed), 3, checkpoint, True, schedule=schedule)
    for turn in range(2):
        inputs, _ = models.batch(turn)
        pipe.step(inputs, inputs, loss=nn.MSELoss())
        plain(inputs)
    found = pipe.state_dict()
    assert [found[f"{at}.num_batches_tracked"].item() for at in range(3)] == [2, 2, 2]
    torch.testing.assert_close(found["0.running_mean"], plain.running_mean)
    torch.testing.assert_close(found["0.running_var"], plain.running_var)
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_deferred_batch_norm(group, schedule, checkpoint):
    group[0].call(defers, schedule, checkpoint)


def leaves_nothing_to_the_collector() -> None:
    """What a mini-batch held is free at its end: a cycle would keep it for a while."""
    import torch.distributed.rpc as rpc

    for worker in ("worker0", "worker1", "worker2"):
        rpc.rpc_sync(worker, collects, args=(False,))
    try:
        pipe, (inputs, targets) = pipe_of("0122", 2, "zb"), models.batch()
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        end = time.monotonic() + 10
        while any(pipe.at_workers(runs_alive).values()):  # the run's thread may still end
            assert time.monotonic() < end
        pipe.close()
    finally:
        for worker in ("worker0", "worker1", "worker2"):
            rpc.rpc_sync(worker, collects, args=(True,))


def test_a_mini_batch_is_free_at_its_end(group):
    group[0].call(leaves_nothing_to_the_collector)


def shares_memory(places: str, changes: bool, checkpoint: str) -> None:
    import weft

    torch.manual_seed(0)
    plain = nn.Sequential(models.Overlapping(), models.ChangesOne(changes))
    placed = [
        weft.WithDevice(copy.deepcopy(layer), f"worker{place}/cpu")
        for layer, place in zip(plain, places, strict=True)
    ]
    pipe = weft.Pipe(nn.Sequential(*placed), 2, checkpoint, schedule="1f1b")
    inputs, targets = models.batch()
    if changes and len(set(places)) > 1:
        with pytest.raises(RuntimeError, match="in place"):
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    else:
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        for part, target in zip(inputs.chunk(2), targets.chunk(2), strict=True):
            (CROSS_ENTROPY(plain[1](*plain[0](part)), target) / 2).backward()
        for name, one in plain.named_parameters():
            torch.testing.assert_close(gradients_of(pipe)[name], one.grad)
    pipe.close()


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("places", ["11", "12", "01"])
def test_a_change_that_another_tensor_would_show_is_refused(group, places, changes):
    group[0].call(shares_memory, places, changes, "never")


def clips(max_norm: float) -> None:
    pipe, plain = pipe_of("0122", 2, "1f1b"), models.plain()
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 2)
    expected = nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    torch.testing.assert_close(pipe.clip_grad_norm_(max_norm), expected)
    found = gradients_of(pipe)
    for name, one in plain.named_parameters():
        torch.testing.assert_close(found[name], one.grad)
    pipe.close()


@pytest.mark.parametrize("max_norm", [0.1, 1000.0])
def test_gradients_are_clipped_by_the_norm_over_all_workers(group, max_norm):
    group[0].call(clips, max_norm)


def shares_a_parameter() -> None:
    import weft

    torch.manual_seed(3)
    tied, last = nn.Linear(4, 4), nn.Linear(4, 3)
    plain = copy.deepcopy(nn.Sequential(tied, nn.Tanh(), tied, last))
    placed = [weft.WithDevice(one, "worker1/cpu") for one in (tied, nn.Tanh(), tied)]
    pipe = weft.Pipe(nn.Sequential(*placed, last), chunks=2, schedule="1f1b")
    optimizer, own = (
        pipe.optimizer(torch.optim.SGD, lr=0.1),
        torch.optim.SGD(plain.parameters(), lr=0.1),
    )
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 2)
    same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
    optimizer.step()
    own.step()
    same(pipe.state_dict(), plain.state_dict())
    pipe.close()


def test_layers_of_one_worker_may_share_a_parameter(group):
    group[0].call(shares_a_parameter)


def forward_alone() -> tuple[str, int]:
    pipe, plain = pipe_of("0122", 3, "1f1b"), models.plain()
    inputs, _ = models.batch()
    output = pipe(inputs)
    torch.testing.assert_close(output.to_here(), plain(inputs))
    assert not output.to_here().requires_grad
    pipe.eval()
    torch.testing.assert_close(pipe(inputs).to_here(), plain(inputs))
    held = held_anywhere(pipe)
    pipe.close()
    return output.owner_name(), held


def test_a_forward_gives_an_rref_of_the_last_stages_worker(group):
    assert group[0].call(forward_alone) == ("worker2", 0)


def values_between_stages() -> None:
    import weft

    stages = (models.Split(), models.Join(), nn.Linear(4, 3))
    plain = nn.Linear(4, 3)
    plain.load_state_dict(stages[2].state_dict())
    places = ("worker1", "worker2", "worker1")
    placed = [weft.WithDevice(one, f"{at}/cpu") for one, at in zip(stages, places, strict=True)]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="1f1b")
    inputs, targets = models.batch()
    loss = pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    whole = torch.cat([models.Join()(*models.Split()(part)) for part in inputs.chunk(2)])
    expected = CROSS_ENTROPY(plain(whole), targets)
    torch.testing.assert_close(loss, expected.detach())
    pipe.close()


def test_stages_pass_tuples_dictionaries_numbers_and_text(group):
    group[0].call(values_between_stages)


def the_same_tensor_twice() -> None:
    import weft

    stages = (models.Twice(), models.ChangesFirst(), nn.Linear(4, 3))
    placed = [weft.WithDevice(one, f"worker{1 + at % 2}/cpu") for at, one in enumerate(stages)]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="gpipe", checkpoint="never")
    inputs, targets = models.batch()
    loss = pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    plain = nn.Linear(4, 3)
    plain.load_state_dict({key[2:]: value for key, value in pipe.state_dict().items()})
    expected = CROSS_ENTROPY(plain((inputs + 2) * 2), targets)
    torch.testing.assert_close(loss, expected.detach())
    pipe.close()


def gradients_of_the_same_tensor_twice() -> None:
    import weft

    torch.manual_seed(1)
    first, last = nn.Linear(4, 3), nn.Linear(3, 3)
    plain = copy.deepcopy(nn.ModuleList([first, last]))
    stages = (first, models.Twice(), models.Adds(), last)
    placed = [
        weft.WithDevice(one, f"worker{at}/cpu")
        for one, at in zip(stages, (1, 1, 2, 1), strict=True)
    ]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="1f1b")
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    CROSS_ENTROPY(plain[1]((plain[0](inputs) + 1) * 2), targets).backward()
    found = gradients_of(pipe)
    torch.testing.assert_close(found["0.weight"], plain[0].weight.grad)
    torch.testing.assert_close(found["3.weight"], plain[1].weight.grad)
    pipe.close()


def test_gradients_of_a_tensor_that_a_stage_gives_twice_count_once(group):
    group[0].call(gradients_of_the_same_tensor_twice)


def test_a_tensor_that_a_stage_gives_twice_is_one_for_the_next(group):
    group[0].call(the_same_tensor_twice)


def remote_modules() -> None:
    import weft

    first = weft.RemoteModule("worker1/cpu", nn.Linear, (4, 6))
    last = weft.RemoteModule("worker2/cpu", nn.Linear, (6, 3))
    pipe = weft.Pipe(nn.Sequential(first, nn.Tanh(), last), chunks=4, schedule="gpipe")
    assert [place.worker for place in pipe.places] == ["worker1", "worker0", "worker2"]
    plain = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    plain.load_state_dict(pipe.state_dict())
    inputs, targets = models.batch()
    loss = pipe.step(inputs, targets, loss=nn.CrossEntropyLoss(reduction="sum"))
    expected = nn.functional.cross_entropy(plain(inputs), targets, reduction="sum")
    torch.testing.assert_close(loss, expected.detach())
    expected.backward()
    torch.testing.assert_close(first.remote_grads()["weight"], plain[0].weight.grad)
    pipe.close()


def test_stages_that_are_remote_modules(group):
    group[0].call(remote_modules)


def fails_once(backward: bool) -> str:
    import weft

    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    failing = weft.WithDevice(models.Failing(2, backward), "worker2/cpu")
    model = nn.Sequential(weft.WithDevice(first, "worker1/cpu"), failing, second)
    pipe = weft.Pipe(model, chunks=4, schedule="1f1b")
    inputs, targets = models.batch()
    try:
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    except RuntimeError as error:
        said = str(error)
    assert held_anywhere(pipe) == 0
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()
    return said


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_stage_that_fails_is_named_and_the_next_step_works(group, way):
    said = group[0].call(fails_once, way == "backward")
    assert f"stage 1 of the Pipe, on worker 'worker2', failed in the {way} of micro-batch 1" in said
    assert "fails on purpose" in said
    assert "worker_models.py" in said  # the stage's traceback


def refused(case: str) -> str:
    import weft

    inputs, targets = models.batch()
    away = weft.WithDevice(nn.Linear(4, 3), "worker1/cpu")
    tied = nn.Linear(4, 4)
    try:
        if case == "targets":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            pipe.step(inputs, targets[:2], loss=CROSS_ENTROPY)
        elif case == "gradient":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            pipe.step(inputs.requires_grad_(), targets, loss=CROSS_ENTROPY)
        elif case == "loss":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            pipe.step(inputs, targets, loss=nn.CrossEntropyLoss(reduction="none"))
        elif case == "no schedule":
            weft.Pipe(nn.Sequential(away), chunks=4)
        elif case == "tied":
            weft.Pipe(nn.Sequential(weft.WithDevice(tied, "worker1/cpu"), tied), schedule="gpipe")
        elif case == "no worker":
            weft.Pipe(nn.Sequential(weft.WithDevice(tied, "nobody/cpu")), schedule="gpipe")
        elif case == "state":
            weft.Pipe(nn.Sequential(away), schedule="gpipe").load_state_dict(
                {"0.weight": torch.zeros(3, 4)}
            )
        elif case in ("in place", "autocast", "no_grad", "parameters", "to", "apply"):
            model = nn.Sequential(weft.WithDevice(models.AddsInPlace(), "worker1/cpu"), away)
            pipe = weft.Pipe(model, chunks=2, checkpoint="always", schedule="gpipe")
            with contextlib.ExitStack() as around:
                if case == "autocast":
                    around.enter_context(torch.autocast("cpu", torch.bfloat16))
                if case == "no_grad":
                    around.enter_context(torch.no_grad())
                if case == "parameters":
                    nn.utils.clip_grad_norm_(pipe.parameters(), 1.0)
                if case == "to":
                    pipe.double()
                if case == "apply":
                    pipe.apply(print)
                pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("targets", "ValueError: the targets give 2 micro-batches, the inputs 4"),
        ("gradient", "ValueError: an input of a Pipe with a schedule wants a gradient"),
        ("loss", "ValueError: reduction is not one of 'mean', 'sum': 'none'"),
        ("no schedule", "ValueError: child '0' goes to worker 'worker1': give the Pipe a schedule"),
        ("tied", ".weight' is shared with a stage on another worker"),
        ("no worker", "nobody"),
        ("state", "missing keys ['0.bias']"),
        ("in place", "the stage changes its input in place"),
        ("autocast", "ValueError: autocast is active here"),
        ("no_grad", "ValueError: gradients are off here"),
        ("parameters", "its parameters are on workers"),
        ("to", "its layers cannot be moved or converted"),
        ("apply", "its layers are on workers"),
    ],
)
def test_what_cannot_be_done_is_refused(group, case, said):
    answer = group[0].call(refused, case)
    assert said in answer


def sends_too_much() -> str:
    """The last stage refuses what comes; the one before it waits for gradients."""
    import weft

    wide = weft.WithDevice(models.Widen(1 << 20), "worker1/cpu")
    model = nn.Sequential(wide, weft.WithDevice(models.Narrow(), "worker2/cpu"))
    pipe = weft.Pipe(model, chunks=2, schedule="1f1b")
    inputs, targets = models.batch()
    try:
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    except RuntimeError as error:
        said = str(error)
    assert held_anywhere(pipe) == 0
    pipe.close()
    return said


def test_what_the_next_stage_cannot_take_ends_the_step():
    with Group(3, per_rank=[{}, {}, {"max_inflight_bytes": 1 << 20}]) as workers:
        said = workers[0].call(sends_too_much)
        assert "what was sent to stage 1 of the Pipe, on worker 'worker2', did not arrive" in said
        assert "max_inflight_bytes" in said
        workers.shutdown()


def remember_held() -> None:
    """From now on, this worker's stages note how many micro-batches they held at most."""
    from weft.pipe._workers.stage import Stage

    hold = Stage._hold

    def noting(stage, *args):
        hold(stage, *args)
        stage.most = max(getattr(stage, "most", 0), stage.held)

    Stage._hold = noting


def most_held(pipe: str) -> dict[int, int]:
    from weft.pipe._workers.part import part_of

    return {number: stage.most for number, stage in part_of(pipe).stages.items()}


def most_of_each_stage() -> dict[int, int]:
    pipe = pipe_of("0112", 5, "1f1b")
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    found = {
        number: most
        for each in pipe.at_workers(most_held).values()
        for number, most in each.items()
    }
    pipe.close()
    return found


def test_one_forward_one_backward_holds_as_many_as_stages_are_left():
    with Group(3) as workers:
        workers.all(remember_held)
        found = workers[0].call(most_of_each_stage)
        assert all(most <= 3 - stage for stage, most in found.items()), found
        workers.shutdown()


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


def cannot_be_written(folder: str) -> str:
    """All workers but the first cannot write."""
    from weft.pipe._workers import checkpoint

    pipe = pipe_of("0122", 2, "1f1b")
    pipe.save_checkpoint(f"{folder}/here")
    before = checkpoint.state.write_shard
    checkpoint.state.write_shard = fails_to_write
    try:
        pipe.save_checkpoint(f"{folder}/here", background=True)
    finally:
        checkpoint.state.write_shard = before
    with pytest.raises(RuntimeError, match="no space") as caught:
        pipe.save_checkpoint(f"{folder}/here")
    pipe.save_checkpoint(f"{folder}/here")
    pipe.close()
    return str(caught.value)


def fails_to_write(pipe: str, folder: str, number: int) -> None:
    if number:
        raise RuntimeError("no space")


def test_a_checkpoint_that_failed_in_the_background_is_told_by_the_next(group, tmp_path):
    group[0].call(cannot_be_written, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def step_until_it_fails() -> tuple[str, int]:
    from weft.pipe._workers.part import part_of

    pipe = pipe_of("0112", 4, "1f1b")
    inputs, targets = models.batch()
    try:
        while True:
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    except RuntimeError as error:
        said = str(error)
    return said, part_of(pipe._identity).stages[0].held


def test_a_killed_worker_ends_the_step_with_its_name():
    with Group(3) as workers:
        workers[0].start(step_until_it_fails)
        workers[2].call(wait_until_some_steps_are_over)
        workers[2].kill()
        killed = time.monotonic()
        said, held = workers[0].result()
        assert time.monotonic() - killed < 10  # 0.1 s on a quiet machine
        assert "worker2" in said
        assert "stage" in said
        assert held == 0
        workers[1].kill()
        workers[0].kill()


def test_a_driver_that_is_killed_leaves_nothing_running():
    with Group(3) as workers:
        workers[0].start(step_until_it_fails)
        workers[2].call(wait_until_some_steps_are_over)
        workers[0].kill()
        for worker in (workers[1], workers[2]):
            worker.call(wait_until_free)
            worker.kill()


def wait_until_some_steps_are_over() -> None:
    from waiting import wait_until

    from weft.pipe._workers import part

    wait_until(
        lambda: any(one.arrivals.is_over(3) for one in part.parts.values()), "steps are running"
    )


def wait_until_free() -> None:
    from waiting import wait_until

    from weft.pipe._workers import part

    def free() -> bool:
        return all(
            len(one.arrivals) == 0 and all(stage.held == 0 for stage in one.stages.values())
            for one in part.parts.values()
        )

    wait_until(free, "the mini-batch has ended here")
