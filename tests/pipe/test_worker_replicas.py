"""Stages with replicas: micro-batches dealt out to workers, and one gradient at all of them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import pytest
import torch
import worker_models as models
from torch import Tensor, nn
from worker_pipes import (
    CROSS_ENTROPY,
    check_gradients,
    gradients_here,
    held_anywhere,
    pipe_of,
    same,
)
from workers import Group


def in_turn(
    plain: nn.Sequential, places: Sequence[str], inputs: Tensor, targets: Tensor, chunks: int
) -> None:
    """Gradients as documented: each replica's micro-batches in order, then the replicas' sums."""
    parts = list(zip(inputs.chunk(chunks), targets.chunk(chunks), strict=True))
    found: dict[nn.Parameter, list[Tensor]] = {}
    for width in set(map(len, places)):
        for replica in range(width):
            twin = copy.deepcopy(plain)
            for parameter, own in zip(twin.parameters(), plain.parameters(), strict=True):
                alone = width == 1 and own.grad is not None
                parameter.grad = own.grad.clone() if alone else None
            for part, wanted in parts[replica::width]:
                one = CROSS_ENTROPY(twin(part), wanted) * (len(part) / len(inputs))
                one.backward()
            for layer, place in enumerate(places):
                if len(place) == width and replica < len(parts):
                    for mine, its in zip(
                        *(one[layer].parameters() for one in (plain, twin)), strict=True
                    ):
                        found.setdefault(mine, []).append(its.grad)
    for layer, place in enumerate(places):
        for parameter in plain[layer].parameters():
            total = functools.reduce(torch.add, found[parameter])
            before = parameter.grad if len(place) > 1 else None  # it is in the total
            parameter.grad = total if before is None else before + total


def trains_in_turn(places: Sequence[str], chunks: int, schedule: str, checkpoint: str) -> None:
    pipe, plain = pipe_of(places, chunks, schedule, checkpoint), models.plain()
    ordered = models.plain()
    optimizer = pipe.optimizer(torch.optim.AdamW, lr=0.05)
    own = torch.optim.AdamW(plain.parameters(), lr=0.05)
    another = torch.optim.AdamW(ordered.parameters(), lr=0.05)
    for turn in range(3):
        for one in (optimizer, own, another):
            one.zero_grad()
        for part in range(turn + 1):  # several mini-batches add up
            inputs, targets = models.batch(10 * turn + part)
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
            in_turn(plain, places, inputs, targets, chunks)
            models.one_after_the_other(ordered, inputs, targets, CROSS_ENTROPY, chunks)
        for found in pipe.at_workers(gradients_here).values():
            for name, grad in found.items():
                assert torch.equal(grad, plain.get_parameter(name).grad), name
                torch.testing.assert_close(grad, ordered.get_parameter(name).grad)
        for one in (optimizer, own, another):
            one.step()
    same(pipe.state_dict(), plain.state_dict())
    assert optimizer.state_dict()["parameters"].keys() == dict(plain.named_parameters()).keys()
    for found in pipe.at_workers(parameters_here).values():
        same(found, {name: plain.state_dict()[name] for name in found})
    inputs, _ = models.batch()
    output = pipe(inputs)
    assert output.owner_name() == f"worker{places[-1][0]}"
    whole = torch.cat([plain(part) for part in inputs.chunk(chunks)])
    torch.testing.assert_close(output.to_here(), whole.detach())
    assert held_anywhere(pipe) == 0
    pipe.close()


def parameters_here(pipe: str) -> dict[str, Tensor]:
    from weft.pipe._workers.part import part_of
    from weft.pipe._workers.state import parameters_of

    return {name: one.detach() for name, one in parameters_of(part_of(pipe).layers).items()}


@pytest.mark.parametrize(
    "places",
    [
        ["0", "12", "12", "0"],  # neighbours on the same workers are one stage
        ["0", "0", "1", "120"],
        ["21", "0", "01", "21"],  # two stages with replicas at the same workers
        ["012", "012", "012", "012"],
    ],
)
@pytest.mark.parametrize(
    ("schedule", "checkpoint"), [("gpipe", "always"), ("1f1b", "except_last"), ("zb", "never")]
)
def test_replicas_have_the_gradients_of_all_micro_batches(group, places, schedule, checkpoint):
    for chunks in (1, 3, 4):  # also fewer micro-batches than replicas
        group[0].call(trains_in_turn, places, chunks, schedule, checkpoint)


def is_recorded(path: str) -> None:
    pipe, (inputs, targets) = pipe_of(["0", "12", "12", "0"], 4, "1f1b"), models.batch()
    with pipe.record() as timeline:
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    batch = timeline.typical
    ran = {(event.micro_batch, batch.lane(event)) for event in batch.events if event.stage == 1}
    assert ran == {(0, 1), (1, 2), (2, 1), (3, 2)}  # worker1 and worker2, in turn
    assert len(timeline.figures.busy) == 3
    assert 0 <= timeline.figures.ideal_bubble < 1
    assert "worker2" in timeline.save(path).read_text()
    pipe.close()


def test_a_timeline_has_a_lane_for_each_replica(group, tmp_path):
    group[0].call(is_recorded, str(tmp_path / "run.svg"))


def backward_in_the_driver() -> None:
    pipe, plain = pipe_of(["21", "0", "01", "21"], 3, "1f1b", "except_last"), models.plain()
    inputs, targets = models.batch()
    own = inputs.clone().requires_grad_()
    inputs.requires_grad_()
    CROSS_ENTROPY(pipe(inputs).to_here(), targets).backward()
    CROSS_ENTROPY(plain(own), targets).backward()
    torch.testing.assert_close(inputs.grad, own.grad)
    check_gradients(pipe, plain)
    with torch.distributed.autograd.context() as context:
        loss = CROSS_ENTROPY(pipe(inputs.detach()).to_here(), targets)
        with pytest.raises(RuntimeError, match="replicas of a stage do not add up gradients in a"):
            torch.distributed.autograd.backward(context, [loss])
    assert held_anywhere(pipe) == 0
    pipe.close()


def test_a_backward_in_the_driver_adds_up_at_all_replicas(group):
    group[0].call(backward_in_the_driver)


def clips() -> None:
    places = ["0", "12", "1", "2"]
    pipe, plain = pipe_of(places, 4, "1f1b"), models.plain()
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    in_turn(plain, places, inputs, targets, 4)
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    torch.testing.assert_close(pipe.clip_grad_norm_(0.1), expected)
    check_gradients(pipe, plain)
    pipe.close()


def test_a_replicated_gradient_counts_once_for_the_norm(group):
    group[0].call(clips)


def saved_and_loaded(folder: str) -> None:
    before = pipe_of(["0", "12", "12", "2"], 4, "1f1b")
    optimizer = before.optimizer(torch.optim.AdamW, lr=0.05)
    before.step(*models.batch(0), loss=CROSS_ENTROPY)
    optimizer.step()
    before.save_checkpoint(folder)
    after = pipe_of(["21", "0", "12", "12"], 4, "gpipe", seed=9)
    again = after.optimizer(torch.optim.AdamW, lr=0.1)
    after.load_checkpoint(folder)
    same(before.state_dict(), after.state_dict())
    state = optimizer.state_dict()["parameters"]
    for name, one in again.state_dict()["parameters"].items():
        same(one["state"], state[name]["state"])
    for found in after.at_workers(parameters_here).values():
        same(found, {name: before.state_dict()[name] for name in found})
    loaded = models.plain(seed=5).state_dict()
    after.load_state_dict(loaded)
    for found in after.at_workers(parameters_here).values():
        same(found, {name: loaded[name] for name in found})
    before.close()
    after.close()


def test_checkpoints_have_one_copy_and_go_to_all_replicas(group, tmp_path):
    group[0].call(saved_and_loaded, str(tmp_path / "here"))
    held = [torch.load(path)["layers"].keys() for path in (tmp_path / "here").iterdir()]
    names = sorted(name for one in held for name in one)
    assert names == sorted(models.plain().state_dict())


def shares_a_parameter() -> None:
    """Two stages at the same workers, of one parameter: its gradient counts once."""
    import weft

    torch.manual_seed(3)
    tied, last = nn.Linear(4, 4), nn.Linear(4, 3)
    plain = copy.deepcopy(nn.Sequential(tied, nn.Tanh(), tied, last))
    both = ["worker1/cpu", "worker2/cpu"]
    placed = [weft.WithDevice(tied, both), nn.Tanh(), weft.WithDevice(tied, both), last]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="1f1b")
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 2)
    check_gradients(pipe, plain)
    pipe.close()


def test_stages_at_the_same_workers_may_share_a_parameter(group):
    group[0].call(shares_a_parameter)


def buffers(kind: str) -> str:
    import weft

    both = ["worker1/cpu", "worker2/cpu"]
    norm = nn.BatchNorm1d(4, track_running_stats=kind != "no statistics")
    layers = [weft.WithDevice(norm, both), nn.Linear(4, 3)]
    pipe = weft.Pipe(
        nn.Sequential(*layers), 2, deferred_batch_norm=kind == "deferred", schedule="1f1b"
    )
    if kind == "eval":
        pipe.eval()
    try:
        pipe.step(*models.batch(), loss=CROSS_ENTROPY)
        return "nothing"
    except RuntimeError as error:
        return str(error)
    finally:
        pipe.close()


@pytest.mark.parametrize("kind", ["plain", "deferred", "eval", "no statistics"])
def test_buffers_that_change_are_refused(group, kind):
    said = group[0].call(buffers, kind)
    if kind in ("plain", "deferred"):
        assert "stage 0 of the Pipe, on worker 'worker" in said
        assert "the stage changes its buffer '0.running_mean'" in said or "buffer '0." in said
    else:
        assert said == "nothing"


def refused() -> None:
    import weft

    with pytest.raises(ValueError, match="two replicas on one worker, of worker1, worker1"):
        twice = weft.WithDevice(nn.Linear(2, 2), ["worker1/cpu", "worker1/meta"])
        weft.Pipe(nn.Sequential(twice), schedule="gpipe")
    with pytest.raises(ValueError, match="a module needs at least one place"):
        weft.WithDevice(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="give the Pipe a schedule"):
        weft.Pipe(nn.Sequential(weft.WithDevice(nn.Linear(2, 2), ["cpu", "worker1/cpu"])))
    with pytest.raises(
        ValueError, match=r"as in a, b, a, b; these are on worker1\+worker2, worker0"
    ):
        pipe_of(["12", "12", "0", "12"], 2, "interleaved")


def test_what_replicas_cannot_do_is_refused(group):
    group[0].call(refused)


def one_fails() -> str:
    import weft

    both = ["worker1/cpu", "worker2/cpu"]
    failing = models.Failing(2, True, "worker2")
    layers = [weft.WithDevice(nn.Sequential(nn.Linear(4, 3), failing), both)]
    pipe = weft.Pipe(nn.Sequential(*layers), 4, "never", schedule="1f1b")
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.1)
    with pytest.raises(RuntimeError) as caught:
        pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    for refusing in (
        optimizer.step,
        lambda: pipe.step(*models.batch(), loss=CROSS_ENTROPY),
        lambda: pipe.clip_grad_norm_(1.0),
    ):
        with pytest.raises(
            RuntimeError, match="the gradients of the replicas of a stage may differ"
        ):
            refusing()
    optimizer.zero_grad()
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    optimizer.step()
    one, other = pipe.at_workers(parameters_here).values()
    same(one, other)
    pipe.close()
    return str(caught.value)


def test_a_replica_that_fails_is_named_and_gradients_are_cleared_before_the_next_step(group):
    said = group[0].call(one_fails)
    assert "stage 0 of the Pipe, on worker 'worker2'" in said
    assert "failed in the backward of micro-batch" in said


def step_until_it_fails() -> str:
    pipe = pipe_of(["0", "12", "12", "12"], 4, "1f1b")
    try:
        while True:
            pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    except RuntimeError as error:
        return str(error)


def test_a_killed_replica_ends_the_step_with_its_name():
    with Group(3) as workers:
        workers[0].start(step_until_it_fails)
        workers[2].call(wait_until_some_steps_are_over)
        workers[2].kill()
        said = workers[0].result()
        assert "stage 1 of the Pipe" in said
        assert "worker2" in said
        workers[1].kill()
        workers[0].kill()


def wait_until_some_steps_are_over() -> None:
    from waiting import wait_until

    from weft.pipe._workers import part

    wait_until(
        lambda: any(one.arrivals.is_over(3) for one in part.parts.values()), "steps are running", 90
    )
