"""Pipelines over workers that cannot be made, or break: what is said, and what is left."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable

import pytest
import torch
import worker_models as models
from torch import nn
from torch.autograd import forward_ad
from worker_pipes import CROSS_ENTROPY, gradients_of, held_anywhere, pipe_of, pipe_of_layers, same
from workers import Group


def fails_once(backward: bool) -> str:
    import weft

    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    failing = weft.WithDevice(models.Failing(2, backward), "worker2/cpu")
    model = nn.Sequential(weft.WithDevice(first, "worker1/cpu"), failing, second)
    pipe = weft.Pipe(model, chunks=4, schedule="1f1b", checkpoint="never")  # runs it once
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


def ends_a_stage() -> str:
    import weft

    exits = weft.WithDevice(models.Exits(), "worker1/cpu")
    model = nn.Sequential(nn.Linear(4, 3), exits, weft.WithDevice(nn.Tanh(), "worker2/cpu"))
    pipe = weft.Pipe(model, chunks=2, schedule="1f1b")
    inputs, targets = models.batch()
    with pytest.raises(RuntimeError) as caught:
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()
    return str(caught.value)


def test_a_stage_that_ends_the_program_ends_the_step(group):
    said = group[0].call(ends_a_stage)
    assert "on worker 'worker1', failed in the forward of micro-batch 0: SystemExit: 3" in said


def ends_the_drivers_stage() -> None:
    import weft

    model = nn.Sequential(models.Exits(), weft.WithDevice(nn.Linear(4, 3), "worker1/cpu"))
    pipe = weft.Pipe(model, chunks=2, schedule="1f1b")
    inputs, targets = models.batch()
    with pytest.raises(SystemExit):
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()


def test_the_drivers_own_stage_ends_the_program(group):
    group[0].call(ends_the_drivers_stage)


def raises_what_has_no_text(places: str) -> None:
    """The driver's own stage raises it to the caller, as it does KeyboardInterrupt."""
    layers = [nn.Linear(4, 4), models.RaisesOnce(), nn.Linear(4, 3)]
    pipe = pipe_of_layers(layers, places, 2, "1f1b", "never")
    inputs, targets = models.batch()
    with pytest.raises(models.HasNoText if places[1] == "0" else RuntimeError) as caught:
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    assert places[1] == "0" or "micro-batch 0: HasNoText: HasNoText" in str(caught.value)
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()


@pytest.mark.parametrize("places", ["001", "012"])
def test_an_error_without_a_text_ends_the_step(group, places):
    group[0].call(raises_what_has_no_text, places)


def keeps_what_a_checkpoint_raised() -> None:
    import weft

    model = nn.Sequential(
        models.FailsInACheckpoint(), weft.WithDevice(nn.Linear(4, 3), "worker1/cpu")
    )
    pipe = weft.Pipe(model, chunks=2, schedule="1f1b", checkpoint="never")
    inputs, targets = models.batch()
    with pytest.raises(RuntimeError, match="ValueError: no 5"):
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    try:
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    except RuntimeError as error:
        kept = error
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None, kept
    pipe.close()


def test_a_checkpoint_in_the_drivers_own_stage_leaves_no_hooks(group):
    group[0].call(keeps_what_a_checkpoint_raised)


def sends_an_unknown_class() -> str:
    """One that only the driver's module has."""
    import weft

    models.Unknown = type("Unknown", (nn.Module,), {"__module__": models.__name__})
    stage = weft.WithDevice(models.Unknown(), "worker1/cpu")
    with pytest.raises(AttributeError) as caught:
        weft.Pipe(nn.Sequential(nn.Linear(4, 4), stage), schedule="gpipe")
    return str(caught.value)


def test_a_class_that_a_worker_does_not_have_delays_no_shutdown():
    with Group(2) as workers:
        said = workers[0].call(sends_an_unknown_class)
        assert "'Unknown'" in said and "Put them in a module that both can import" in said
        begun = time.monotonic()
        workers.shutdown()
        assert time.monotonic() - begun < 30  # 100 s where an RRef is lost


def only_the_driver_has() -> Callable[..., torch.Tensor]:
    def missing_loss(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return output.mean()

    missing_loss.__qualname__ = missing_loss.__name__
    missing_loss.__module__ = models.__name__
    models.missing_loss = missing_loss
    return missing_loss


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
            pipe.step(inputs, torch.ones(10, 3, requires_grad=True), loss=nn.MSELoss())
        elif case == "nested gradient":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            pipe.step(inputs, (targets, [torch.ones(1, requires_grad=True)]), loss=CROSS_ENTROPY)
        elif case == "hidden gradient":
            pipe = weft.Pipe(
                nn.Sequential(weft.WithDevice(models.Hides(), "worker2/cpu"), away),
                schedule="gpipe",
            )
            pipe.step(inputs.requires_grad_(), targets, loss=CROSS_ENTROPY)
        elif case == "trained loss":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            pipe.step(inputs, targets, loss=nn.AdaptiveLogSoftmaxWithLoss(3, 3, [1]))
        elif case == "scripted function":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            pipe.step(inputs, targets, loss=torch.jit.script(models.loss_in_a_row))
        elif case == "part of the loss":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            loss = functools.partial(models.weighted, head=nn.Linear(3, 3))
            pipe.step(inputs, targets, loss=loss)
        elif case == "tensor of the loss":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            head = torch.ones(3, requires_grad=True)
            pipe.step(inputs, targets, loss=functools.partial(models.weighted, head=head))
        elif case == "hooks":
            tied.weight.register_post_accumulate_grad_hook(print)
            weft.Pipe(nn.Sequential(weft.WithDevice(tied, "worker1/cpu")), schedule="gpipe")
        elif case == "leaf in place":
            relu = weft.WithDevice(nn.ReLU(inplace=True), "worker1/cpu")
            pipe = weft.Pipe(nn.Sequential(tied, relu), chunks=4, schedule="gpipe")
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
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
        elif case == "local loss":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            pipe.step(inputs, targets, loss=lambda output, _: output.mean())
        elif case == "loss that is not there":
            pipe = weft.Pipe(nn.Sequential(away), chunks=4, schedule="gpipe")
            pipe.step(inputs, targets, loss=only_the_driver_has())
        elif case == "device":
            weft.WithDevice(tied, "worker1/gpu")
        elif case.startswith("shared"):
            norm = nn.BatchNorm1d(4, affine=False)
            placed = [weft.WithDevice(norm, "worker1/cpu"), norm, away]
            pipe = weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="gpipe")
            if case == "shared constant":
                pipe.eval()
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        elif case in ("tangent", "jvp", "vmap"):
            pipe = weft.Pipe(nn.Sequential(away), chunks=2, schedule="gpipe")
            if case == "tangent":
                with forward_ad.dual_level():
                    pipe(forward_ad.make_dual(inputs, inputs))
            elif case == "jvp":
                torch.func.jvp(lambda x: pipe(x).to_here(), (inputs,), (inputs,))
            else:
                torch.vmap(lambda x: pipe.step(x, targets, loss=CROSS_ENTROPY))(inputs[None])
        elif case.startswith("mode"):
            pipe = weft.Pipe(nn.Sequential(away), chunks=2, schedule="gpipe")
            with models.Doubles() if case == "mode" else torch.device("cpu"):
                pipe.step(inputs, targets, loss=CROSS_ENTROPY)
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
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("targets", "ValueError: the targets give 2 micro-batches, the inputs 4"),
        ("gradient", "ValueError: gradients of targets do not come back"),
        ("nested gradient", "ValueError: gradients of targets do not come back"),
        ("hidden gradient", "has tensors that require gradients inside Hidden"),
        ("trained loss", "ValueError: the loss has parameters (head.weight"),
        ("scripted function", "ValueError: a scripted function cannot be sent"),
        ("part of the loss", "ValueError: the loss has parameters (weight, bias)"),
        ("tensor of the loss", "ValueError: the loss has parameters (one of size [3])"),
        ("hooks", "ValueError: hooks of tensors do not go with child '0' to another worker"),
        ("leaf in place", "let the stage's first operation make a new tensor (inplace=False)"),
        ("loss", "ValueError: reduction is not one of 'mean', 'batchmean', 'sum': 'none'"),
        ("no schedule", "ValueError: child '0' goes to worker 'worker1': give the Pipe a schedule"),
        ("tied", ".weight' is shared with a stage on another worker"),
        (
            "shared",
            "the stage changes its buffer '0.num_batches_tracked', which a stage on another",
        ),
        ("shared constant", "nothing"),
        ("tangent", "ValueError: an input has a forward-mode gradient"),
        ("jvp", "ValueError: a transform of torch.func is active here"),
        ("vmap", "ValueError: a transform of torch.func is active here"),
        ("mode", "ValueError: the torch function mode Doubles is active here"),
        ("mode of the default device", "nothing"),
        ("no worker", "nobody"),
        (
            "local loss",
            "TypeError: the loss cannot be sent to worker 'worker1': Can't pickle local",
        ),
        ("loss that is not there", "'missing_loss' on <module 'worker_models'"),
        ("loss that is not there", "Put them in a module that both can import, not in the program"),
        ("device", "RuntimeError: the layer Linear cannot be on 'worker1/gpu': Expected one of"),
        ("state", 'Missing key(s) in state_dict: "0.bias"'),
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


_interrupted: list = []  # the driver's pipeline, from call to call


def interrupted() -> None:
    import weft

    waits = weft.WithDevice(models.WaitsOnce(), "worker1/cpu")
    _interrupted[:] = [weft.Pipe(nn.Sequential(nn.Linear(4, 4), waits), 2, schedule="1f1b")]
    with pytest.raises(KeyboardInterrupt):
        _interrupted[0].step(*models.batch(), loss=CROSS_ENTROPY)


def waits_in_a_backward() -> None:
    assert models.WaitsOnce.came.wait(60)


def is_given_up() -> None:
    from waiting import wait_until

    from weft.pipe._workers.part import parts

    wait_until(lambda: all(one.arrivals.is_over(1) for one in parts.values()), "it is given up")


def let_go() -> None:
    models.WaitsOnce.goes.set()


def goes_on_after_an_interrupt() -> None:
    pipe = _interrupted[0]
    pipe.zero_grad()
    plain = nn.Sequential(nn.Linear(4, 4), models.WaitsOnce())
    plain.load_state_dict(pipe.state_dict())
    models.WaitsOnce.goes.set()
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    models.one_after_the_other(plain, *models.batch(), CROSS_ENTROPY, 2)
    same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
    pipe.close()


def test_a_step_that_ctrl_c_left_ends_before_the_next():
    """The first press ends the step, the second the wait for the worker, which is amid a backward."""
    with Group(2) as workers:
        workers[0].start(interrupted)
        workers[1].call(waits_in_a_backward)
        workers[0].signal(signal.SIGINT)
        workers[1].call(is_given_up)
        workers[0].signal(signal.SIGINT)
        workers[0].result()
        workers[0].start(goes_on_after_an_interrupt)
        assert not workers[0].has_answered_within(0.5)
        workers[1].call(let_go)
        workers[0].result()
        workers.shutdown()


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
        assert (
            "what worker 'worker1' sent to stage 1 of the Pipe, on worker 'worker2', did not arrive"
            in said
        )
        assert "max_inflight_bytes" in said
        workers.shutdown()


def steps_with_much() -> None:
    import weft

    wide = weft.WithDevice(models.Widen(1 << 17), "worker1/cpu")
    model = nn.Sequential(wide, weft.WithDevice(models.Narrow(), "worker2/cpu"))
    pipe = weft.Pipe(model, chunks=2, schedule="1f1b")
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()
    fails_once(False)


def test_workers_with_one_thread_for_rpc():
    with Group(3, num_worker_threads=1) as workers:
        workers[0].call(steps_with_much)
        workers.shutdown()


def predicts(places: str) -> None:
    inputs, _ = models.batch()
    with torch.no_grad():
        wanted = models.plain()(inputs)
        for _ in range(20):
            found = pipe_of(places, 2, "gpipe").eval()(inputs)  # the Pipe goes at once
            assert torch.allclose(found.to_here(), wanted)


@pytest.mark.parametrize("places", ["0011", "1100", "1122"])
def test_an_output_outlives_its_pipe(group, places):
    group[0].call(predicts, places)


def uses_a_closed_pipe() -> None:
    pipe = pipe_of("0112", 4, "1f1b")
    inputs, targets = models.batch()
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.1)
    output = pipe(inputs)
    pipe.close()
    pipe.close()  # again: nothing is left to do
    for use in (
        lambda: pipe.step(inputs, targets, loss=CROSS_ENTROPY),
        lambda: pipe(inputs),
        lambda: output.to_here().sum().backward(),
        optimizer.step,
        lambda: pipe.optimizer(torch.optim.SGD, lr=0.1),
        pipe.state_dict,
        pipe.zero_grad,
        pipe.eval,
        lambda: pipe.load_checkpoint("nowhere"),
    ):
        with pytest.raises(
            RuntimeError, match=r"^the Pipe was closed, and cannot be used any more"
        ):
            use()


def test_a_closed_pipe_says_so(group):
    group[0].call(uses_a_closed_pipe)


def builds_twice(pipe: str) -> bool:
    from weft.pipe._workers import calls

    first, second = calls.Hold(pipe), calls.Hold(pipe)
    calls.build(pipe, "worker0", [], {}, 0, [], first)
    calls.build(pipe, "worker0", [], {}, 0, [], second)
    del first
    there = calls.has_part(pipe)
    del second
    return there and not calls.has_part(pipe)


def test_a_former_hold_does_not_take_a_new_part_with_it(group):
    assert group[0].call(builds_twice, "a pipeline")


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


def test_a_driver_that_is_killed_leaves_nothing():
    with Group(3) as workers:
        workers[0].start(step_until_it_fails)
        workers[2].call(wait_until_some_steps_are_over)
        workers[0].kill()
        for worker in (workers[1], workers[2]):
            worker.call(wait_until_free)
            worker.kill()


def makes_none() -> str:
    import weft

    stages = [
        weft.WithDevice(nn.Linear(4, 4), "worker1/cpu"),
        weft.WithDevice(models.CannotMove(4, 3), "worker2/cpu"),
    ]
    try:
        weft.Pipe(nn.Sequential(*stages), schedule="gpipe")
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_pipe_that_cannot_be_made_leaves_nothing(group):
    assert "cannot be moved" in group[0].call(makes_none)
    for worker in group:
        worker.call(wait_until_free)


def wait_until_some_steps_are_over() -> None:
    from waiting import wait_until

    from weft.pipe._workers import part

    wait_until(
        lambda: any(one.arrivals.is_over(3) for one in part.parts.values()), "steps are running"
    )


def wait_until_free() -> None:
    from waiting import wait_until

    from weft.pipe._workers.part import parts

    wait_until(lambda: not parts, "the stages have gone here")
