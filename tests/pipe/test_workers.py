"""Pipelines whose stages are on workers: real processes, against the same run in one process."""

from __future__ import annotations

import copy
import json
import threading
import time

import perfetto_engine
import pytest
import torch
import trace_format
import worker_models as models
from torch import nn
from worker_pipes import (
    CROSS_ENTROPY,
    collects,
    gradients_of,
    held_anywhere,
    pipe_of,
    runs_alive,
    same,
)
from workers import Group


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


def refuses_what_has_no_tensor() -> None:
    pipe, (inputs, targets) = pipe_of("0122", 2, "1f1b"), models.batch()
    for values, kind in ((None, "NoneType"), ({"labels": targets}, "dict")):
        with pytest.raises(TypeError, match=rf"^targets do not have any tensors: \({kind}\)"):
            pipe.step(inputs, values, loss=CROSS_ENTROPY)
        with pytest.raises(TypeError, match=rf"^inputs do not have any tensors: \({kind}\)"):
            pipe.step(values, targets, loss=CROSS_ENTROPY)
    pipe.close()


def test_inputs_and_targets_without_a_tensor_are_refused_by_name(group):
    group[0].call(refuses_what_has_no_tensor)


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


def one_step(places: str) -> None:
    pipe, (inputs, targets) = pipe_of(places, 2, "1f1b"), models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()


def recorded_steps() -> list[tuple[str, int, int, str]]:
    from weft._observe import flight

    found = flight.record()["pipeline_steps"]
    assert all(one["time_created_ns"] <= one["time_ended_ns"] for one in found)
    return [(one["kind"], one["stage"], one["micro_batch"], one["state"]) for one in found[-4:]]


def test_its_steps_are_in_the_flight_record(group):
    group[0].call(one_step, "0122")
    assert sorted(group[1].call(recorded_steps)) == [
        (kind, 1, part, "completed") for kind in ("backward", "forward") for part in (0, 1)
    ]


def one_traced_step(places: str, traced: str) -> None:
    import weft

    pipe, (inputs, targets) = pipe_of(places, 2, "1f1b"), models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    with weft.trace(traced):
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()


def test_its_steps_are_in_a_trace(group, tmp_path):
    path = tmp_path / "trace.json"
    for _ in range(2):  # torch's profiler names threads in its first trace only
        group[0].call(one_traced_step, "0122", str(path))
    events = json.loads(path.read_text())["traceEvents"]
    trace_format.check(events)
    steps = [one["name"] for one in events if one.get("cat") == "weft::pipe"]
    wanted = [
        f"{kind} {stage}.mb{part}"
        for kind in ("forward", "backward")
        for stage in range(3)
        for part in range(2)
    ]
    assert sorted(steps) == sorted(wanted)


def test_perfetto_shows_them_on_a_thread_of_each_worker(group, tmp_path):
    path = tmp_path / "trace.json"
    group[0].call(one_traced_step, "0122", str(path))
    (found,) = perfetto_engine.ask(
        path,
        """select process.name, count(*) from slice
        join thread_track on thread_track.id = slice.track_id join thread using (utid)
        join process using (upid) where thread.name = 'pipeline' group by 1""",
    )
    assert [(name[:7], count) for name, count in found] == [
        ("worker0", 4),
        ("worker1", 4),
        ("worker2", 4),
    ]


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


def clips(max_norm: float, places: str, schedule: str) -> None:
    pipe, plain = pipe_of(places, 2, schedule), models.plain()
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 2)
    expected = nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    assert torch.equal(pipe.clip_grad_norm_(max_norm), expected)
    largest = max(one.abs().max() for one in gradients_of(pipe).values())
    assert torch.equal(pipe.clip_grad_norm_(1000.0, "inf"), largest)
    found = gradients_of(pipe)
    same(found, {name: one.grad for name, one in plain.named_parameters()})
    pipe.close()


def spoil_a_gradient(pipe: str) -> None:
    from weft.pipe._workers.part import part_of
    from weft.pipe._workers.state import parameters_of

    next(iter(parameters_of(part_of(pipe).layers).values())).grad.fill_(torch.nan)


def clips_what_is_not_a_number() -> None:
    import torch.distributed.rpc as rpc

    pipe = pipe_of("0122", 2, "1f1b")
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    rpc.rpc_sync("worker1", spoil_a_gradient, args=(pipe._identity,))
    assert pipe.clip_grad_norm_(1.0).isnan()
    assert all(one.isnan().all() for one in gradients_of(pipe).values())
    pipe.close()


def test_a_norm_that_is_not_a_number_spoils_all_gradients_as_torchs_does(group):
    group[0].call(clips_what_is_not_a_number)


@pytest.mark.parametrize(("places", "schedule"), [("0122", "1f1b"), ("0101", "interleaved")])
@pytest.mark.parametrize("max_norm", [0.1, 1000.0])
def test_gradients_are_clipped_by_the_norm_over_all_workers(group, max_norm, places, schedule):
    group[0].call(clips, max_norm, places, schedule)


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


def closes_at_once() -> None:
    plain, (inputs, _) = models.plain(), models.batch()
    for _ in range(20):
        pipe = pipe_of("0122", 2, "1f1b")
        with torch.no_grad():
            output = pipe(inputs)
        pipe.close()
        torch.testing.assert_close(output.to_here(), plain(inputs))


def test_an_output_outlives_a_pipe_that_is_closed_at_once(group):
    group[0].call(closes_at_once)


def pipe_threads(end: bool = False) -> list[int | None]:
    """Those that run mini-batches here, once they have ended if they are to."""
    found = [one for one in threading.enumerate() if one.name == "weft-pipe"]
    for one in found:
        one.join(10 if end else 0)
    return [one.native_id for one in found if one.is_alive()]


def runs_in_one_thread() -> None:
    import torch.distributed.rpc as rpc

    assert rpc.rpc_sync("worker1", pipe_threads, args=(True,)) == []  # of earlier Pipes
    pipe, (inputs, targets) = pipe_of("1122", 2, "gpipe"), models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    first = rpc.rpc_sync("worker1", pipe_threads)
    assert len(first) == 1
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    assert rpc.rpc_sync("worker1", pipe_threads) == first
    assert pipe_threads() == []
    pipe.close()
    assert rpc.rpc_sync("worker1", pipe_threads, args=(True,)) == []


def test_a_worker_runs_all_mini_batches_in_one_thread(group):
    group[0].call(runs_in_one_thread)
