"""A pipeline's driver whose workers are C++ programs: the numbers are those of one process.

cpp_worker_driver.py WORKER: the program of examples/cpp_pipeline_worker.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import scripted_models as scripted
import torch
import torch.distributed.rpc as rpc
import worker_models as models
from cpp_worker_group import Group, refused
from ports import free_port
from torch import Tensor, nn
from waiting import wait_until
from worker_pipes import pipe_of_layers, same

import weft
from weft.pipe._workers import state

CROSS_ENTROPY = torch.jit.script(nn.CrossEntropyLoss())
MEAN = torch.jit.script(nn.MSELoss())
COUNT = 3  # workers, the driver among them


def pipe_of(layers, places, chunks=4, schedule="1f1b", checkpoint="except_last", **options):
    return pipe_of_layers(layers, places, chunks, schedule, checkpoint, **options)


def trains(places: str, schedule: str, checkpoint: str, cls: type, **options: object) -> None:
    """Three steps of an optimizer; then the state, in both directions, and an output."""
    pipe = pipe_of(scripted.layers(), places, schedule=schedule, checkpoint=checkpoint)
    plain = nn.Sequential(*scripted.layers())
    optimizer, own = pipe.optimizer(cls, **options), cls(plain.parameters(), **options)
    for turn in range(3):
        inputs, targets = models.batch(turn)
        (optimizer.zero_grad if turn else pipe.zero_grad)()
        own.zero_grad()
        given, wanted = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
        found = pipe.step(given, targets, loss=CROSS_ENTROPY)
        expected = models.one_after_the_other(plain, wanted, targets, CROSS_ENTROPY, pipe.chunks)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)  # the sum's order
        assert torch.equal(given.grad, wanted.grad)
        if turn == 1:
            norm = pipe.clip_grad_norm_(0.1)
            expected_norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
            torch.testing.assert_close(norm, expected_norm, rtol=1e-6, atol=0)
            pipe.zero_grad(set_to_none=False)
            own.zero_grad(set_to_none=False)
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
            models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, pipe.chunks)
        optimizer.step()
        own.step()
        same(pipe.state_dict(), plain.state_dict())
    pipe.eval()
    plain.eval()
    with torch.no_grad():
        output = torch.cat([plain(one) for one in inputs.chunk(pipe.chunks)])
    assert torch.equal(pipe(inputs).to_here(), output)
    pipe.load_state_dict(nn.Sequential(*scripted.layers(seed=5)).state_dict())
    same(pipe.state_dict(), nn.Sequential(*scripted.layers(seed=5)).state_dict())
    pipe.close()


def trains_everywhere() -> None:
    sgd = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    for places in ("1111", "0122", "1212", "1200"):
        for schedule in ("gpipe", "1f1b"):
            trains(places, schedule, "never", torch.optim.AdamW, lr=0.05)
            trains(places, schedule, "always", torch.optim.SGD, **sgd)
    trains("1122", "zb", "never", torch.optim.Adam, lr=0.05, weight_decay=0.1, amsgrad=True)
    trains("1212", "interleaved", "except_last", torch.optim.SGD, lr=0.1, maximize=True)


def low_precision_steps_alike(dtype: torch.dtype, cls: type, **options: object) -> None:
    """An optimizer's steps for parameters whose numbers are rounded; the driver's are Python's."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).to(dtype)
    pipe = pipe_of(map(torch.jit.script, copy.deepcopy(plain)), "12", chunks=2)
    optimizer, own = pipe.optimizer(cls, **options), cls(plain.parameters(), **options)
    for _ in range(4):
        inputs, targets = torch.randn(2, 8, 16, dtype=dtype)
        optimizer.zero_grad()
        own.zero_grad()
        pipe.step(inputs, targets, loss=MEAN)
        models.one_after_the_other(plain, inputs, targets, MEAN, 2)
        pipe.at_workers(state.scale_gradients, 0.3)
        for parameter in plain.parameters():
            parameter.grad.mul_(0.3)
        optimizer.step()
        own.step()
        same(pipe.state_dict(), plain.state_dict())
    pipe.close()


def steps_alike_in_low_precision() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for options in (
            {"weight_decay": 0.1},
            {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
            {"momentum": 0.9, "dampening": 0.3, "maximize": True},
        ):
            low_precision_steps_alike(dtype, torch.optim.SGD, lr=0.1, **options)
        for cls in (torch.optim.Adam, torch.optim.AdamW):
            low_precision_steps_alike(dtype, cls, lr=0.01, eps=1e-3)
            low_precision_steps_alike(
                dtype, cls, lr=0.01, betas=(0.6, 0.9), eps=1e-3, weight_decay=0.1, amsgrad=True
            )


class Training:
    """A Pipe, its optimizer and its scheduler; and one process with the same."""

    def __init__(self, places: str, seed: int = 0) -> None:
        self.pipe = pipe_of(scripted.layers(seed), places)
        self.optimizer = self.pipe.optimizer(torch.optim.AdamW, lr=0.05)
        self.rates = self.optimizer.scheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
        self.plain = nn.Sequential(*scripted.layers())
        self.own = torch.optim.AdamW(self.plain.parameters(), lr=0.05)
        self.own_rates = torch.optim.lr_scheduler.ExponentialLR(self.own, gamma=0.5)

    def goes_on(self, turns: Iterable[int]) -> None:
        for turn in turns:
            self.optimizer.zero_grad()
            self.pipe.step(*models.batch(turn), loss=CROSS_ENTROPY)
            self.optimizer.step()
            self.rates.step()

    def alone(self, turns: range) -> dict[str, Tensor]:
        for turn in turns:
            self.own.zero_grad()
            models.one_after_the_other(self.plain, *models.batch(turn), CROSS_ENTROPY, 4)
            self.own.step()
            self.own_rates.step()
        return self.plain.state_dict()


def takes_up_a_checkpoint() -> None:
    """Of layers, optimizer and scheduler, in another division; equal to plain ones."""
    first = Training("0112")
    first.goes_on(range(2))
    assert first.rates.get_last_lr() == [0.0125]
    with tempfile.TemporaryDirectory() as folder:
        first.pipe.save_checkpoint(Path(folder) / "there", background=True).wait()
        state = first.optimizer.state_dict()
        first.pipe.close()
        assert state["parameters"].keys() == dict(first.plain.named_parameters()).keys()
        second = Training("1220", seed=7)
        second.pipe.load_checkpoint(Path(folder) / "there")
        second.optimizer.load_state_dict(state)
    second.goes_on(range(2, 4))
    same(second.pipe.state_dict(), first.alone(range(4)))
    second.pipe.close()


def load(training: Training, folder: Path) -> None:
    def loaded() -> bool:
        with contextlib.suppress(RuntimeError):  # one has not heard yet that the other is back
            training.pipe.load_checkpoint(folder)
            return True
        return False

    wait_until(loaded, "the checkpoint is loaded", 90, 0.01)


def goes_on_after_a_pause(group: Group, paused: int) -> None:
    """A worker that was out of reach in a mini-batch gets its stages, before it drops those it has."""
    training = Training("0112")
    training.goes_on(range(2))
    with tempfile.TemporaryDirectory() as folder:
        training.pipe.save_checkpoint(Path(folder) / "there")
        pause = threading.Timer(0.2, group.signal, (paused, signal.SIGSTOP))
        pause.start()
        with refused(RuntimeError, f"'worker{paused}'", "is lost"):
            training.goes_on(itertools.count(2))
        group.signal(paused, signal.SIGCONT)
        load(training, Path(folder) / "there")
    end, turn = time.monotonic() + 2, 2
    while time.monotonic() < end:
        training.goes_on([turn])
        turn += 1
    same(training.pipe.state_dict(), training.alone(range(turn)))
    training.pipe.close()


def returns(group: Group) -> None:
    """A worker that was killed and started again gets its stages, optimizer and scheduler."""
    training = Training("0122")
    training.goes_on(range(2))
    with tempfile.TemporaryDirectory() as folder:
        training.pipe.save_checkpoint(Path(folder) / "there")
        training.goes_on(range(5, 6))
        group.kill(2)
        group.start(2)
        load(training, Path(folder) / "there")
    training.goes_on(range(2, 4))
    same(training.pipe.state_dict(), training.alone(range(4)))
    training.pipe.close()


def takes_no_checkpoint_of_a_larger_layer() -> None:
    layer = nn.Sequential(nn.Linear(4, 4))
    larger = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    small, large = (pipe_of([torch.jit.script(one)], "1") for one in (layer, larger))
    with tempfile.TemporaryDirectory() as folder:
        large.save_checkpoint(folder)
        with refused(KeyError, "has 0.1.weight, 0.1.bias, which this Pipe does not have"):
            small.load_checkpoint(folder)
    small.close()
    large.close()


def passes_values() -> None:
    """Tuples and lists of tensors between stages; a tuple of targets, and one as an output."""
    for give, take in (
        (scripted.SplitsTensors(), scripted.JoinsTensors()),
        (scripted.Lists(), scripted.TakesList()),
    ):
        inputs = models.batch()[0]
        layers = [torch.jit.script(give), torch.jit.script(take)]
        pipe = pipe_of(layers, "12")
        pipe.eval()
        wanted = [layers[1](*_arguments(layers[0](one))) for one in inputs.chunk(4)]
        assert torch.equal(pipe(inputs).to_here(), torch.cat(wanted))
        pipe.close()
    pipe = pipe_of([torch.jit.script(scripted.SplitsTensors())], "1", chunks=2)
    pipe.eval()
    twice, _, rows = pipe(inputs).to_here()
    assert torch.equal(twice, inputs * 2)
    assert rows.tolist() == [0, 1, 2, 3, 4] * 2
    pipe.close()
    pipe = pipe_of([torch.jit.script(scripted.Nests()), torch.jit.script(nn.Identity())], "12")
    pipe.eval()
    with refused(
        RuntimeError, "stage 0", "'worker1'", "needs Python, which this worker does not have"
    ):
        pipe(inputs).to_here()
    pipe.close()


def _arguments(value: object) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def is_refused() -> None:
    """Each before anything is changed, with the stage and the worker."""
    inputs, targets = models.batch()
    script = torch.jit.script(nn.Linear(4, 3))
    where = ("stage 1 of the Pipe", "'worker2'")
    with refused(ValueError, *where, "'1' is a Linear", "torch.jit.script"):
        pipe_of([script, nn.Linear(3, 3)], "12")
    with refused(ValueError, "stage 0", "replicas"):
        weft.Pipe(
            nn.Sequential(weft.WithDevice(script, ["worker1/cpu", "worker2/cpu"])), schedule="1f1b"
        )
    with refused(NotImplementedError, "deferred_batch_norm"):
        pipe_of([script], "1", deferred_batch_norm=True)
    pipe = pipe_of([script, torch.jit.script(nn.Linear(3, 3))], "02")
    before = pipe.state_dict()
    with refused(ValueError, *where, "the loss is a CrossEntropyLoss"):
        pipe.step(inputs, targets, loss=nn.CrossEntropyLoss())
    with refused(NotImplementedError, *where, "keeps no graph"):
        pipe(inputs)
    with refused(NotImplementedError, *where, "RMSprop"):
        pipe.optimizer(torch.optim.RMSprop)
    with refused(NotImplementedError, *where, "foreach"):
        pipe.optimizer(torch.optim.SGD, foreach=True)
    with refused(NotImplementedError, *where, "parameter_rrefs"):
        pipe.remote_parameters()
    with refused(RuntimeError, "size mismatch for 1.weight"):
        pipe.load_state_dict({**before, "1.weight": torch.zeros(1, 3)})
    same(pipe.state_dict(), before)
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()


def fails() -> None:
    """A stage that raises ends the mini-batch everywhere, and the next one works."""
    inputs, targets = models.batch()
    for places in ("0122", "1120", "2111"):
        layers = scripted.layers()
        layers[2] = torch.jit.script(nn.Sequential(scripted.FailsAt(2), nn.Linear(6, 6)))
        pipe = pipe_of(layers, places, checkpoint="never")
        worker = f"worker{places[2]}"
        with refused(RuntimeError, f"on worker '{worker}', failed in the forward of micro-batch 1"):
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        pipe.close()
    with refused(RuntimeError, "the Pipe was closed"):
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)


def joins_no_numbers() -> None:
    """An output that cannot be joined fails its mini-batch, and not the worker."""
    layers = [torch.jit.script(nn.Linear(4, 3)), torch.jit.script(scripted.Sums())]
    for places in ("12", "11"):
        pipe = pipe_of(layers, places, chunks=2)
        pipe.eval()
        with (
            torch.no_grad(),
            refused(RuntimeError, "joined along dimension 0, and one has no dimension"),
        ):
            pipe(models.batch()[0])
        pipe.close()
    pipe = pipe_of(scripted.layers(), "0122")
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    pipe.close()


def is_recorded() -> None:
    pipe = pipe_of(scripted.layers(), "0122")
    with pipe.record() as timeline:
        pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    events = timeline.typical.events
    assert len(events) == 2 * 3 * 4
    assert all(0 < event.begin <= event.end for event in events)
    pipe.close()


def goes_with_its_driver() -> None:
    """A lost driver's RRefs end at the worker, as dropped ones do: the part goes with the hold."""
    pipe = pipe_of(scripted.layers(), "0112")
    has_part = partial(weft.call, "worker1/weft.pipeline", pipe._parts._pipe, method="has_part")
    assert has_part()
    pipe._parts._scripted["worker1"].hold = None
    wait_until(lambda: not has_part(), "the part is gone", 20)
    with refused(RuntimeError, "has no stage of this Pipe", "out of reach"):
        pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    pipe.close()


class EndlessAfterOne(nn.Module):
    """Gives back the first micro-batch, and computes for ever on the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = True

    def forward(self, x: Tensor) -> Tensor:
        while not self.first:
            x = x + 0
        self.first = False
        return x


class Tells(nn.Module):
    """Sets an event when a micro-batch comes."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self.event = event

    def forward(self, x: Tensor) -> Tensor:
        self.event.set()
        return x


def names_the_dead(group: Group) -> None:
    """It is killed in the middle of a mini-batch."""
    came = threading.Event()
    layers = [torch.jit.script(nn.Linear(4, 4)), torch.jit.script(EndlessAfterOne()), Tells(came)]
    pipe = pipe_of(layers, "120", chunks=2)
    pipe.eval()

    def kill() -> None:
        came.wait()
        group.kill(2)

    killer = threading.Thread(target=kill)
    killer.start()
    with refused(RuntimeError, "stage 1 of the Pipe", "'worker2'", "lost"):
        pipe(models.batch()[0])
    killer.join()
    pipe.close()


def main(program: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    os.environ["WORLD_SIZE"] = str(COUNT)
    group = Group(program)
    for rank in range(1, COUNT):
        group.start(rank)
    checks = (
        trains_everywhere,
        steps_alike_in_low_precision,
        takes_up_a_checkpoint,
        takes_no_checkpoint_of_a_larger_layer,
        passes_values,
        is_refused,
        fails,
        joins_no_numbers,
        is_recorded,
        goes_with_its_driver,
    )
    try:
        weft.init_rpc("driver", rank=0, world_size=COUNT)
        for check in checks:
            check()
            print(f"{check.__name__}: fine", flush=True)
        checks_with_deaths = (
            partial(goes_on_after_a_pause, paused=1),
            partial(goes_on_after_a_pause, paused=2),
            returns,
            names_the_dead,
        )
        for check_with_deaths in checks_with_deaths:
            check_with_deaths(group)
            print(f"{check_with_deaths}: fine", flush=True)
        rpc.shutdown(graceful=False)
    finally:
        group.end()


if __name__ == "__main__":
    main(sys.argv[1])
