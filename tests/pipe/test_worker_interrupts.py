"""Ctrl-C in what a driver asks its pipeline's workers for: what comes next waits, and nothing is torn."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import threading
from pathlib import Path

import pytest
import torch
import worker_models as models
from torch import nn
from waiting import wait_until
from worker_pipes import CROSS_ENTROPY, same

# Where a worker waits once until it is let go.
_armed, _came, _goes = threading.Event(), threading.Event(), threading.Event()


def arm() -> None:
    _came.clear()
    _goes.clear()
    _armed.set()


def pause() -> None:
    if _armed.is_set():
        _armed.clear()
        _came.set()
        assert _goes.wait(60)


def has_come() -> None:
    assert _came.wait(60)


def let_go() -> None:
    _goes.set()


class Pauses(nn.Linear):
    """Each of its methods may wait."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pause()
        return super().forward(x)

    def train(self, mode: bool = True):
        pause()
        return super().train(mode)

    def zero_grad(self, set_to_none: bool = True) -> None:
        pause()
        super().zero_grad(set_to_none)

    def get_extra_state(self) -> torch.Tensor:
        pause()
        return torch.zeros(1)

    def set_extra_state(self, state: torch.Tensor) -> None:
        pause()
        if state.sum() > 0:
            raise ValueError("no such state")


class PausingSGD(torch.optim.SGD):
    def step(self, closure=None):
        pause()
        return super().step(closure)


def pausing_adam(parameters, **options: object) -> torch.optim.Adam:
    pause()
    return torch.optim.Adam(parameters, **options)


def pausing_rate(epoch: int) -> float:
    pause()
    return 0.5**epoch


class Training:
    """A Pipe whose stages, at workers 1 and 2, pause, with its optimizer; after a first mini-batch."""

    def __init__(self, folder: str) -> None:
        import weft

        torch.manual_seed(0)
        layers = [weft.WithDevice(Pauses(4, 4), "worker1/cpu")]
        layers += [weft.WithDevice(Pauses(4, 3), "worker2/cpu")]
        self.pipe = weft.Pipe(nn.Sequential(*layers), 2, schedule="1f1b")
        self.optimizer = self.pipe.optimizer(PausingSGD, lr=0.5, momentum=0.9)
        self.scheduler = self.optimizer.scheduler(
            torch.optim.lr_scheduler.LambdaLR, lr_lambda=pausing_rate
        )
        self.path = f"{folder}/here"
        self.pipe.save_checkpoint(self.path)
        self.zeros = {name: one * 0 for name, one in self.pipe.state_dict().items()}
        self.step()

    def step(self) -> None:
        self.pipe.step(*models.batch(), loss=CROSS_ENTROPY)
        self.optimizer.step()

    def call(self, name: str) -> None:
        calls = {
            "optimizer.step": self.optimizer.step,
            "scheduler.step": self.scheduler.step,
            "zero_grad": self.pipe.zero_grad,
            "eval": self.pipe.eval,
            "load_state_dict": lambda: self.pipe.load_state_dict(self.zeros),
            "a wrong state": lambda: self.pipe.load_state_dict(
                {**self.zeros, "0._extra_state": torch.ones(1)}
            ),
            "load_checkpoint": lambda: self.pipe.load_checkpoint(self.path),
            "save_checkpoint": lambda: self.pipe.save_checkpoint(self.path),
            "a background save": lambda: self.pipe.save_checkpoint(self.path, background=True),
            "optimizer": lambda: self.pipe.optimizer(pausing_adam, lr=0.1),
        }
        calls[name]()


_training: list[Training] = []  # from call to call


def begin(folder: str) -> None:
    _training[:] = [Training(folder)]


def is_interrupted_in(name: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        _training[0].call(name)


def interrupt(group, at: int, function, *arguments) -> None:
    """Ctrl-C while that worker is in what the driver's function calls, and stays in it."""
    group[at].call(arm)
    group[0].start(function, *arguments)
    group[at].call(has_come)
    group[0].signal(signal.SIGINT)


def interrupt_in(group, folder: Path, name: str) -> None:
    group[0].call(begin, str(folder))
    interrupt(group, 1, is_interrupted_in, name)
    group[0].result()


def goes_on_after(name: str, folder: str) -> None:
    """As if nobody had interrupted it."""
    found, undisturbed = _training[0], Training(folder)
    undisturbed.call(name)
    for one in (found, undisturbed):
        one.step()
    assert found.pipe.training == undisturbed.pipe.training
    same(found.pipe.state_dict(), undisturbed.pipe.state_dict())
    for one in (found, undisturbed):
        one.pipe.close()


@pytest.mark.parametrize(
    "name",
    ["optimizer.step", "scheduler.step", "zero_grad", "eval", "load_state_dict", "load_checkpoint"],
)
def test_the_next_call_waits_for_one_that_ctrl_c_left(group, tmp_path, name):
    interrupt_in(group, tmp_path, name)
    group[0].start(goes_on_after, name, str(tmp_path))
    assert not group[0].has_answered_within(0.5)
    group[1].call(let_go)
    group[0].result()


def is_interrupted_amid_sending(folder: str) -> None:
    begin(folder)
    found, undisturbed = _training[0], Training(folder)
    parts = found.pipe._parts
    original = parts.begin

    def presses(*args):
        parts.begin = original
        os.kill(os.getpid(), signal.SIGINT)
        return original(*args)

    parts.begin = presses
    with pytest.raises(KeyboardInterrupt):
        found.optimizer.step()
    undisturbed.optimizer.step()
    same(found.pipe.state_dict(), undisturbed.pipe.state_dict())
    found.pipe.close()
    undisturbed.pipe.close()


def test_ctrl_c_leaves_no_worker_without_a_call_that_others_got(group, tmp_path):
    group[0].call(is_interrupted_amid_sending, str(tmp_path))


def is_told() -> None:
    found = _training[0]
    said = r"(?s)a call of this Pipe that was interrupted has failed: .*no such state"
    with pytest.raises(RuntimeError, match=said):
        found.optimizer.step()
    found.optimizer.step()
    found.pipe.close()


def test_a_call_that_fails_after_ctrl_c_is_told_by_the_next(group, tmp_path):
    interrupt_in(group, tmp_path, "a wrong state")
    group[1].call(let_go)
    group[0].call(is_told)


# Checkpoints


def keep_state() -> None:
    _training[0].before = copy.deepcopy(_training[0].pipe.state_dict())


def trains_on_and_saves(folder: str) -> None:
    found = _training[0]
    found.optimizer.step()
    found.pipe.save_checkpoint(f"{folder}/later")
    after = copy.deepcopy(found.pipe.state_dict())
    for path, state in ((found.path, found.before), (f"{folder}/later", after)):
        found.pipe.load_checkpoint(path)
        same(found.pipe.state_dict(), state)
    found.pipe.close()


@pytest.mark.parametrize("name", ["save_checkpoint", "a background save"])
def test_a_checkpoint_that_ctrl_c_left_is_of_one_moment(group, tmp_path, name):
    group[0].call(begin, str(tmp_path))
    group[0].call(keep_state)
    interrupt(group, 1, is_interrupted_in, name)
    group[0].result()
    group[0].start(trains_on_and_saves, str(tmp_path))
    assert not group[0].has_answered_within(0.5)
    group[1].call(let_go)
    group[0].result()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "later"]


def finds_a_folder_of_its_own(folder: str) -> None:
    found = Training(folder)
    for background in (False, True):
        for what in ("unfinished", "before"):
            left = Path(f"{found.path}.{found.pipe._identity}.{what}")
            left.mkdir()
            (left / "shard-7.pt").touch()
        found.pipe.save_checkpoint(found.path, background).wait()
        found.pipe.load_checkpoint(found.path)
    found.pipe.close()


def test_a_save_removes_what_a_former_one_left(group, tmp_path):
    group[0].call(finds_a_folder_of_its_own, str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        "shard-0.pt",
        "shard-1.pt",
    ]


# Optimizers


def picky(parameters, lr: float) -> torch.optim.Adam:
    """Refuses the second stage."""
    parameters = list(parameters)
    if any(len(one) == 3 for one in parameters):
        raise ValueError("not for this stage")
    return torch.optim.Adam(parameters, lr=lr)


def fails_at_one_worker(folder: str) -> None:
    found = Training(folder)
    state = copy.deepcopy(found.pipe.state_dict())
    kept = found.optimizer.state_dict()
    with pytest.raises(ValueError, match="not for this stage"):
        found.pipe.optimizer(picky, lr=0.1)
    with pytest.raises(RuntimeError, match=r"this LambdaLR of the Pipe is gone"):
        found.scheduler.step()
    uses = (found.optimizer.step, found.optimizer.zero_grad, found.optimizer.state_dict)
    for use in (*uses, lambda: found.optimizer.load_state_dict(kept)):
        with pytest.raises(
            RuntimeError, match=r"this PausingSGD of the Pipe is gone: another pipe.optim"
        ):
            use()
    with pytest.raises(RuntimeError, match=r"may have another optimizer than the rest"):
        found.pipe.save_checkpoint(folder + "/mixed")
    same(found.pipe.state_dict(), state)
    found.optimizer = found.pipe.optimizer(torch.optim.SGD, lr=0.1)
    found.step()
    scheduler = found.optimizer.scheduler(torch.optim.lr_scheduler.StepLR, step_size=1)
    with pytest.raises(TypeError):
        found.optimizer.scheduler(torch.optim.lr_scheduler.StepLR, no_such=1)
    with pytest.raises(RuntimeError, match=r"this StepLR of the Pipe is gone: .* failed"):
        scheduler.step()
    with pytest.raises(RuntimeError, match=r"may have another scheduler than the rest"):
        found.pipe.save_checkpoint(folder + "/mixed")
    found.optimizer = found.pipe.optimizer(torch.optim.SGD, lr=0.1)
    found.pipe.save_checkpoint(folder + "/right")
    found.pipe.close()


def test_a_former_optimizer_is_gone_when_another_fails_at_one_worker(group, tmp_path):
    group[0].call(fails_at_one_worker, str(tmp_path))


def finds_another() -> None:
    found = _training[0]
    with pytest.raises(RuntimeError, match=r"this PausingSGD .* has made a pausing_adam"):
        found.optimizer.step()
    found.optimizer = found.pipe.optimizer(torch.optim.SGD, lr=0.1)
    found.step()
    found.pipe.close()


def test_a_former_optimizer_is_replaced_by_one_that_ctrl_c_left(group, tmp_path):
    interrupt_in(group, tmp_path, "optimizer")
    group[0].start(finds_another)
    assert not group[0].has_answered_within(0.5)
    group[1].call(let_go)
    group[0].result()


# What is left of it


def begin_to_evaluate(folder: str) -> None:
    begin(folder)
    _training[0].pipe.eval()


def predicts_until_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        _training[0].pipe(models.batch()[0][:1])  # its first micro-batch is its last


def is_given_up() -> None:
    from weft.pipe._workers.part import parts

    wait_until(lambda: all(one.arrivals.is_over(2) for one in parts.values()), "it is given up")


def outputs_here(pipe: str) -> int:
    from weft.pipe._workers.part import part_of

    return len(part_of(pipe)._outputs)


def has_left_no_output() -> None:
    pipe = _training[0].pipe
    assert set(pipe.at_workers(outputs_here).values()) == {0}
    with torch.no_grad():
        pipe(models.batch()[0]).to_here()
    assert set(pipe.at_workers(outputs_here).values()) == {0}
    pipe.close()


def test_the_output_of_a_forward_that_ctrl_c_ended_is_dropped(group, tmp_path):
    """The last stage's worker is amid its last task then."""
    group[0].call(begin_to_evaluate, str(tmp_path))
    interrupt(group, 2, predicts_until_ctrl_c)
    group[2].call(is_given_up)
    group[2].call(let_go)
    group[0].result()
    group[0].call(has_left_no_output)


def has_the_callers_deadline() -> bool:
    import weft
    from weft.pipe._driver.uninterrupted import Uninterrupted

    return Uninterrupted().do(weft.deadline) is not None


def asks_for_the_deadline() -> None:
    import torch.distributed.rpc as rpc

    assert rpc.rpc_sync("worker1", has_the_callers_deadline, timeout=60)
    assert not rpc.rpc_sync("worker1", has_the_callers_deadline, timeout=0)


def test_a_drivers_calls_keep_the_deadline_of_the_call_that_it_serves(group):
    group[0].call(asks_for_the_deadline)


def driver_threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "weft-driver"}


def ends_its_thread(folder: str) -> None:
    before = driver_threads()
    found = Training(folder)
    (thread,) = driver_threads() - before
    with contextlib.closing(found.pipe):
        found.step()
    del found
    thread.join(60)
    assert not thread.is_alive()


def test_the_drivers_thread_ends_with_the_pipe(group, tmp_path):
    group[0].call(ends_its_thread, str(tmp_path))
