"""Recomputations at workers: they do what the forward did, or say so."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import worker_models as models
from torch import nn
from torch.utils import _pytree as pytree
from worker_pipes import (
    CROSS_ENTROPY,
    check_gradients,
    gradients_of,
    held_anywhere,
    pipe_of,
    pipe_of_layers,
    same,
)

OTHER_NUMBERS = "did not draw the random numbers of its first run: another thread or another Pipe"
OTHER_VALUE = "gave another value 0 when it ran again for the backward"


def repeats_itself_not(layer: nn.Module, place: str, said: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), layer, nn.Linear(4, 3)]
    pipe = pipe_of_layers(layers, ["0", place, "2"], 2, "gpipe", "always")
    with pytest.raises(RuntimeError, match=said) as caught:
        pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    assert f"on worker 'worker{place}', failed in the backward of micro-batch" in str(caught.value)
    assert held_anywhere(pipe) == 0
    pipe.eval()
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)  # nothing is recomputed
    pipe.close()


@pytest.mark.parametrize("place", ["0", "1"])
def test_draws_of_another_thread_are_noticed(group, place):
    layer = models.DrawsBesideAThread()
    group[0].call(repeats_itself_not, layer, place, OTHER_NUMBERS)


@pytest.mark.parametrize("place", ["0", "1"])
@pytest.mark.parametrize("make", [models.CountsItsRuns, models.normed])
def test_another_value_is_noticed(group, make, place):
    group[0].call(repeats_itself_not, make(), place, OTHER_VALUE)


def writes_its_own_parameter(place: str, schedule: str, checkpoint: str) -> None:
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(5, 4, max_norm=1.0)
    layers = [bag, nn.Linear(4, 3)]
    plain = copy.deepcopy(nn.Sequential(*layers))
    pipe = pipe_of_layers(layers, [place, "2"], 4, schedule, checkpoint)
    inputs, targets = torch.randint(5, (8, 3)), torch.randint(3, (8,))
    for _ in range(2):
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 4)
    check_gradients(pipe, plain)
    same(pipe.state_dict(), plain.state_dict())
    output = pipe(inputs).to_here()
    with torch.no_grad():
        pipe(inputs).to_here()  # its writes are the stage's own, too
    output.sum().backward()
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["except_last", "always"])
@pytest.mark.parametrize(("place", "schedule"), [("0", "1f1b"), ("1", "1f1b"), ("1", "gpipe")])
def test_a_stage_may_write_its_own_parameters(group, place, schedule, checkpoint):
    group[0].call(writes_its_own_parameter, place, schedule, checkpoint)


def changes_parameters_between(how: str) -> None:
    pipe = pipe_of("0122", 2, "gpipe", "always")
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.5)
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    output = pipe(inputs).to_here()
    if how == "load":
        pipe.load_state_dict(pipe.state_dict())
    else:
        optimizer.step()
    if how == "step and forward":
        pipe(inputs).to_here()
    with pytest.raises(RuntimeError, match="a parameter of the stage was changed in place after"):
        output.sum().backward()
    del output
    pipe(inputs).to_here().sum().backward()
    pipe.close()


@pytest.mark.parametrize("how", ["step", "load", "step and forward"])
def test_parameters_that_change_before_the_backward_are_noticed(group, how):
    group[0].call(changes_parameters_between, how)


def asks_for_a_gradient_of_what_it_drew() -> None:
    torch.manual_seed(0)
    layer = models.SlopeOfDropout()
    found = []
    for checkpoint in ("never", "always"):
        pipe = pipe_of_layers([copy.deepcopy(layer)], "0", 2, "gpipe", checkpoint)
        inputs, targets = models.batch()
        torch.manual_seed(5)
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        found.append((gradients_of(pipe), torch.rand(1)))
        pipe.close()
    (expected, expected_next), (recomputed, next_number) = found
    same(recomputed, expected)
    assert torch.equal(next_number, expected_next)


def test_a_stage_that_asks_for_a_gradient_draws_once(group):
    group[0].call(asks_for_a_gradient_of_what_it_drew)


def keeps_what_its_stage_raised() -> None:
    """A traceback that is kept keeps the frames of the stage's run."""
    layers = [models.Failing(2, False), nn.Linear(4, 3)]
    pipe = pipe_of_layers(layers, "01", 4, "gpipe", "always")
    plain = nn.Sequential(nn.Identity(), copy.deepcopy(layers[1]))
    inputs, targets = models.batch()
    with pytest.raises(RuntimeError, match="fails on purpose") as caught:
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    pipe.zero_grad()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 4)
    same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
    assert "micro-batch 1" in str(caught.value)
    pipe.close()


def test_an_error_that_is_kept_leaves_no_hooks_behind(group):
    group[0].call(keeps_what_its_stage_raised)


# What does not run under hooks on saved tensors, as those of torch's checkpoint.


def scripted() -> list[nn.Module]:
    return [torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)))]


class Slope(nn.Module):
    """The gradient of a function of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        slope = torch.func.grad(lambda one: self.layer(one).sin().sum())
        return self.layer(slope(x))


@dataclasses.dataclass
class Checked:
    tensor: torch.Tensor

    def __post_init__(self) -> None:
        assert isinstance(self.tensor, torch.Tensor), type(self.tensor)


pytree.register_dataclass(Checked)


class Wraps(nn.Linear):
    def forward(self, x: torch.Tensor) -> Checked:
        return Checked(super().forward(x))


class Unwraps(nn.Linear):
    def forward(self, x: Checked) -> torch.Tensor:
        return super().forward(x.tensor)


class Ragged(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = super().forward(x)
        return torch.nested.as_nested_tensor([row[: 1 + at % 3] for at, row in enumerate(rows)])


class Padded(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.nested.to_padded_tensor(x, 0.0, (x.size(0), 3)))


LAYERS = {
    "scripted": scripted,
    "torch.func": lambda: [Slope()],
    "checked values": lambda: [Wraps(4, 5), Unwraps(5, 3)],
    "nested tensors": lambda: [Ragged(4, 3), Padded(3, 3)],
}


def in_place(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    output.mul_(2)
    return output.logsumexp(1).mean() - output[0, targets[0]]


def runs_again(kind: str, places: str, inside: bool) -> None:
    made = []
    for _ in range(2):  # torch copies no scripted parameters as leaves
        torch.manual_seed(0)
        layers = LAYERS[kind]()
        made.append([nn.Sequential(*layers)] if inside else layers)
    layers, plain = made[0], nn.Sequential(*made[1])
    pipe = pipe_of_layers(layers, places[: len(layers)], 3, "1f1b", "always")
    inputs, targets = models.batch()
    for loss in (CROSS_ENTROPY, in_place):
        for _ in range(3):
            pipe.step(inputs, targets, loss=loss)
            models.one_after_the_other(plain, inputs, targets, loss, 3)
    found = gradients_of(pipe)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)
    pipe.close()


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
@pytest.mark.parametrize("places", ["00", "12", "01"])
@pytest.mark.parametrize("kind", LAYERS)
def test_what_runs_without_a_pipe_runs_again(group, kind, places):
    group[0].call(runs_again, kind, places, inside=kind == "nested tensors" and places != "00")
