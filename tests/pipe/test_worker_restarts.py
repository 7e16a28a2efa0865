"""Workers that are killed and come back: load_checkpoint builds their stages again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
import worker_models as models
from rejoining import Static
from torch import nn
from worker_pipes import CROSS_ENTROPY, gradients_of, pipe_of, same

CHUNKS = 4
_training: list = []  # the driver's, from call to call


class Training:
    """A Pipe, and the same micro-batches in one process; their optimizers and schedulers."""

    def __init__(self, pipe, plain: nn.Sequential, folder: str) -> None:
        self.pipe, self.plain, self.folder = pipe, plain, folder
        self.optimizer = pipe.optimizer(torch.optim.AdamW, lr=0.05)
        scheduling = {"step_size": 1, "gamma": 0.9}
        self.scheduler = self.optimizer.scheduler(torch.optim.lr_scheduler.StepLR, **scheduling)
        self.own = torch.optim.AdamW(plain.parameters(), lr=0.05)
        self.own_scheduler = torch.optim.lr_scheduler.StepLR(self.own, **scheduling)

    def step(self, number: int) -> None:
        self.pipe.step(*models.batch(number), loss=CROSS_ENTROPY)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def step_alone(self, number: int) -> None:
        models.one_after_the_other(self.plain, *models.batch(number), CROSS_ENTROPY, CHUNKS)
        self.own.step()
        self.own.zero_grad()
        self.own_scheduler.step()


def begin(kind: str, folder: str) -> None:
    import weft

    plain = models.plain()
    if kind == "remote":
        layers = [weft.RemoteModule(f"worker{at}/cpu", nn.Linear, (4, 4)) for at in (1, 2)]
        pipe = weft.Pipe(nn.Sequential(*layers), CHUNKS, "never", schedule="1f1b")
        plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        plain.load_state_dict(pipe.state_dict())
    else:
        pipe = pipe_of({"moved": "0122", "replicas": ["0", "12", "0", "2"]}[kind], CHUNKS, "1f1b")
    training = Training(pipe, plain, folder)
    _training[:] = [training]
    training.step(0)
    pipe.save_checkpoint(folder)
    if kind != "replicas":  # whose sums have another order
        training.step_alone(0)


def step_until_it_fails() -> str:
    try:
        while True:
            _training[0].pipe.step(*models.batch(1), loss=CROSS_ENTROPY)
    except RuntimeError as error:
        return str(error)


def some_steps_are_over() -> None:
    from waiting import wait_until

    from weft.pipe._workers import part

    wait_until(
        lambda: any(one.arrivals.is_over(3) for one in part.parts.values()), "steps are running", 90
    )


def step_without_a_checkpoint() -> str:
    from waiting import wait_until

    def refused() -> str:
        with pytest.raises(RuntimeError) as caught:
            _training[0].optimizer.zero_grad()
            _training[0].pipe.step(*models.batch(1), loss=CROSS_ENTROPY)
        said = str(caught.value)
        return said if "has no stage" in said else ""  # else: not everybody knows that it is back

    said: str = wait_until(refused, "the worker that is back is asked", 90)
    return said


def loads_nothing(folder: str) -> str:
    """Trains nothing but what the others have, either."""
    with pytest.raises(FileNotFoundError):
        _training[0].pipe.load_checkpoint(f"{folder}/nothing")
    return step_without_a_checkpoint()


def load(training: Training) -> None:
    from waiting import wait_until

    def loaded() -> bool:
        try:
            training.pipe.load_checkpoint(training.folder)
        except RuntimeError:  # a worker has not heard yet that the other is back
            return False
        return True

    wait_until(loaded, "the checkpoint is loaded", 90)


def go_on() -> None:
    training = _training[0]
    load(training)
    assert all(one is None for one in gradients_of(training.pipe).values())
    for number in (1, 2):
        training.step(number)
        training.step_alone(number)
    same(training.pipe.state_dict(), training.plain.state_dict())
    assert training.scheduler.get_last_lr() == training.own_scheduler.get_last_lr()


def go_on_as_a_second_one() -> None:
    """Replicas are compared with a Pipe that nothing happened to."""
    training = _training[0]
    other = Training(pipe_of(["0", "12", "0", "2"], CHUNKS, "1f1b"), training.plain, "")
    other.step(0)
    load(training)
    for number in (1, 2):
        training.step(number)
        other.step(number)
    same(training.pipe.state_dict(), other.pipe.state_dict())


@pytest.fixture
def group() -> Iterator[Static]:
    with Static(3, peer_timeout=60) as workers:  # a killed one is noticed all the same
        yield workers


@pytest.mark.parametrize(
    ("kind", "goes_on"),
    [("moved", go_on), ("remote", go_on), ("replicas", go_on_as_a_second_one)],
)
def test_a_worker_that_comes_back_gets_its_stages_again(
    group: Static, tmp_path, kind: str, goes_on: Callable[[], None]
):
    driver = group[0]
    driver.call(begin, kind, str(tmp_path / "checkpoint"))
    driver.start(step_until_it_fails)
    group[2].call(some_steps_are_over)
    group[2].kill()
    assert "worker2" in driver.result()
    group.again(2)
    assert "load_checkpoint builds its stages again" in driver.call(step_without_a_checkpoint)
    assert "worker 'worker2' has no stage" in driver.call(loads_nothing, str(tmp_path))
    driver.call(goes_on)


def go_on_for_a_while() -> None:
    training = _training[0]
    load(training)
    end, number = time.monotonic() + 2, 1  # longer than a lost driver's stages stay
    while time.monotonic() < end:
        training.step(number)
        training.step_alone(number)
        number += 1
    same(training.pipe.state_dict(), training.plain.state_dict())


def test_a_worker_that_was_out_of_reach_gets_its_stages_again(tmp_path):
    """At once: it has those of before still, and is about to drop them."""
    with Static(3) as group:
        driver = group[0]
        driver.call(begin, "moved", str(tmp_path / "checkpoint"))
        driver.start(step_until_it_fails)
        group[2].call(some_steps_are_over)
        group[2].stop()
        assert "worker2" in driver.result()
        group[2].signal(signal.SIGCONT)
        driver.call(go_on_for_a_while)


def given_as_an_rref() -> str:
    import torch.distributed.rpc as rpc

    import weft

    rref = rpc.remote("worker2", nn.Linear, args=(4, 3))
    remote = weft.RemoteModule.init_from_module_rref("worker2/cpu", rref)
    with pytest.raises(ValueError) as caught:
        remote.make_again()
    return str(caught.value)


def test_a_remote_module_without_its_class_cannot_be_made_again(group):
    assert "was made from an RRef" in group[0].call(given_as_an_rref)


def cannot_ask_the_second() -> None:
    from weft.pipe._driver import remote_parts

    def has_no_python(worker: str) -> bool:
        if worker == "worker2":
            raise RuntimeError("it is lost again")
        return False

    parts = remote_parts.RemoteParts("a pipeline", [], 0)
    known = dict.fromkeys(("worker1", "worker2"), object())
    parts._scripted = dict(known)
    with (
        mock.patch.object(remote_parts, "has_no_python", has_no_python),
        pytest.raises(RuntimeError, match="lost again"),
    ):
        parts._find_scripted(list(known))
    assert parts._scripted == known
    parts._find_scripted(["worker1"])
    assert parts._scripted.keys() == {"worker2"}


def test_cpp_workers_stay_known_where_one_cannot_be_asked(group):
    group[0].call(cannot_ask_the_second)


def begin_two(folder: str) -> None:
    """A Pipe that trains a remote module, and one that uses it."""
    import weft

    remote = weft.RemoteModule("worker2/cpu", nn.Linear, (4, 4))
    pipes = [
        weft.Pipe(nn.Sequential(remote), chunks, "never", schedule="1f1b") for chunks in (CHUNKS, 1)
    ]
    _training[:] = [Training(pipe, nn.Linear(4, 4), folder) for pipe in pipes]
    _training[0].step(0)
    pipes[0].save_checkpoint(folder)


def have_one_module() -> None:
    first, second = _training
    load(first)
    load(second)
    first.step(1)
    same(first.pipe.state_dict(), second.pipe.state_dict())


def test_two_pipes_have_one_remote_module_again(group: Static, tmp_path):
    group[0].call(begin_two, str(tmp_path / "checkpoint"))
    group[2].kill()
    group.again(2)
    group[0].call(have_one_module)
