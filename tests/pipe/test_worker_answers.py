"""What would give another answer than one process does, without a word: it is right, or an error."""

from __future__ import annotations

import copy

import pytest
import torch
import worker_models as models
from torch import nn
from worker_pipes import CROSS_ENTROPY, check_gradients, gradients_of, pipe_of, pipe_of_layers, same

PLACES = pytest.mark.parametrize("places", ["00", "11", "12", "20"])


def draws_from_its_own_generator(places: str, checkpoint: str) -> None:
    torch.manual_seed(0)
    layers = [models.OwnNoise(), nn.Linear(4, 3)]
    plain = nn.Sequential(*copy.deepcopy(layers))
    pipe = pipe_of_layers(layers, places, 3, "gpipe", checkpoint)
    inputs, targets = models.batch()
    for way in ("step", "loss"):
        if way == "step":
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        else:
            CROSS_ENTROPY(pipe(inputs).to_here(), targets).backward()
        models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 3)
    check_gradients(pipe, plain)
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@PLACES
def test_a_recomputation_draws_again_from_a_layers_own_generator(group, places, checkpoint):
    group[0].call(draws_from_its_own_generator, places, checkpoint)


def knows_its_mode(places: str, checkpoint: str) -> list[str]:
    pipe = pipe_of_layers([models.Notes(), nn.Linear(4, 3)], places, 2, "gpipe", checkpoint)
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    pipe.eval()
    pipe(models.batch()[0])
    found = next(iter(one for one in pipe.at_workers(models.notes).values() if one))
    pipe.close()
    return found


@PLACES
def test_a_layer_knows_whether_it_is_recomputed(group, places):
    first = ["checkpointing"] * 2 + ["recomputing"] * 2
    assert group[0].call(knows_its_mode, places, "always") == first + ["plain"] * 2
    assert group[0].call(knows_its_mode, places, "never") == ["plain"] * 4


def loss_of_one_element() -> None:
    pipe, plain = pipe_of("0122", 3, "1f1b"), models.plain()
    inputs, targets = models.batch()
    loss = pipe.step(inputs, targets, loss=models.loss_in_a_row)
    expected = models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 3)
    torch.testing.assert_close(loss, expected)
    same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
    pipe.close()


def test_a_loss_may_be_a_row_of_one(group):
    group[0].call(loss_of_one_element)


def is_a_part_of_a_module() -> None:
    pipe = pipe_of("0122", 3, "1f1b")
    whole = nn.ModuleDict({"pipe": pipe, "head": nn.Linear(3, 3)})
    state = whole.state_dict()
    names = {f"pipe.{name}" for name in models.plain().state_dict()}
    assert state.keys() == names | {"head.weight", "head.bias"}
    changed = {name: one + 1 for name, one in state.items()}
    whole.load_state_dict(changed)
    same(whole.state_dict(), changed)
    del changed["pipe.0.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*pipe\.0\.weight"):
        whole.load_state_dict(changed)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*pipe\.nothing"):
        whole.load_state_dict({**state, "pipe.nothing": torch.ones(1)})
    with pytest.raises(NotImplementedError, match="assign=True does not work"):
        whole.load_state_dict(state, assign=True)
    for ask in (whole.parameters, whole.modules, whole.buffers):
        with pytest.raises(NotImplementedError, match="on workers"):
            list(ask())
    pipe.close()


def test_a_pipe_inside_of_a_module_has_its_state_there(group):
    group[0].call(is_a_part_of_a_module)


def freed_after_the_optimizer_was_made() -> None:
    import weft

    torch.manual_seed(0)
    layers = [nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3)]
    plain = nn.Sequential(*copy.deepcopy(layers))
    placed = [layers[0], weft.WithDevice(layers[1], "worker1/cpu")]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="gpipe")
    optimizer = pipe.optimizer(torch.optim.AdamW, lr=0.1)
    own = torch.optim.AdamW(plain.parameters(), lr=0.1)
    for turn in range(2):
        inputs, targets = models.batch(turn)
        optimizer.zero_grad()
        own.zero_grad()
        pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 2)
        optimizer.step()
        own.step()
        layers[0].requires_grad_(True)
        plain[0].requires_grad_(True)
    same(pipe.state_dict(), plain.state_dict())
    pipe.close()


def test_an_optimizer_trains_what_is_freed_later(group):
    group[0].call(freed_after_the_optimizer_was_made)


def trains_a_loss_at_the_driver() -> None:
    pipe, plain = pipe_of("1220", 2, "1f1b"), models.plain()
    loss = models.Weighted()
    own = copy.deepcopy(loss)
    inputs, targets = models.batch()
    pipe.step(inputs, targets, loss=loss)
    models.one_after_the_other(plain, inputs, targets, own, 2)
    assert torch.equal(loss.weight.grad, own.weight.grad)
    pipe.close()


def test_a_loss_has_parameters_where_the_driver_has_the_last_stage(group):
    group[0].call(trains_a_loss_at_the_driver)


def gives_a_named_tuple() -> None:
    pipe = pipe_of_layers([nn.Linear(4, 4), models.Names()], "12", 3, "gpipe", "never")
    output = pipe(models.batch()[0]).to_here()
    assert type(output) is models.Named
    assert output.left.shape == (models.ROWS, 4)
    assert output.right == ["right"] * 3
    pipe.close()


def test_an_output_may_be_a_named_tuple(group):
    group[0].call(gives_a_named_tuple)


def shares_no_memory_with_the_driver() -> None:
    import weft

    wide = 512  # such tensors go through shared memory
    torch.manual_seed(0)
    layers = [nn.Linear(wide, wide), nn.Linear(wide, wide)]
    before = copy.deepcopy(nn.Sequential(*layers).state_dict())
    placed = [weft.WithDevice(one, f"worker{at}/cpu") for at, one in enumerate(layers, 1)]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="gpipe")
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.1)
    kept = pipe.state_dict()
    pipe.load_state_dict(kept)
    inputs = torch.randn(256, wide)
    unchanged = inputs.clone()
    pipe.step(inputs, torch.randn(256, wide), loss=nn.MSELoss())
    optimizer.step()
    assert not torch.equal(pipe.state_dict()["1.weight"], before["1.weight"])
    same(kept, before)
    same(nn.Sequential(*layers).state_dict(), before)
    assert torch.equal(inputs, unchanged)
    pipe.close()


def test_a_state_and_the_drivers_modules_do_not_change_with_the_workers(group):
    group[0].call(shares_no_memory_with_the_driver)


def changes_what_it_gave(training: bool) -> None:
    pipe = pipe_of_layers([models.GivesItsBuffer(), nn.Linear(4, 3)], "12", 2, "gpipe", "never")
    pipe.train(training)
    with pytest.raises(RuntimeError, match="changes in place what it has given to another stage"):
        pipe(models.batch()[0])
    pipe.close()


@pytest.mark.parametrize("training", [False, True])
def test_a_stage_that_changes_what_it_gave_is_refused(group, training):
    group[0].call(changes_what_it_gave, training)


def changes_an_earlier_one() -> None:
    pipe = pipe_of_layers([models.GivesTwoBuffers(), nn.Linear(4, 3)], "12", 3, "gpipe", "never")
    with pytest.raises(RuntimeError, match="changes in place what it has given to another stage"):
        pipe(models.batch()[0][:9])
    pipe.close()


def test_a_change_of_what_was_given_before_the_last_is_refused(group):
    group[0].call(changes_an_earlier_one)


def changes_its_input_before_the_backward(checkpoint: str) -> None:
    """The first stage, which is in the driver, has copies."""
    pipe, plain = pipe_of("0122", 2, "gpipe", checkpoint), models.plain()
    inputs, targets = models.batch()
    loss = CROSS_ENTROPY(pipe(inputs).to_here(), targets)
    CROSS_ENTROPY(plain(inputs), targets).backward()
    inputs.zero_()
    loss.backward()
    check_gradients(pipe, plain)
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_an_input_may_change_before_the_backward(group, checkpoint):
    group[0].call(changes_its_input_before_the_backward, checkpoint)


def clips_doubles() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4).double(), nn.Linear(4, 3).double()]
    plain = nn.Sequential(*copy.deepcopy(layers))
    pipe = pipe_of_layers(layers, "12", 1, "gpipe", "never")
    inputs, targets = models.batch()
    pipe.step(inputs.double(), targets, loss=CROSS_ENTROPY)
    CROSS_ENTROPY(plain(inputs.double()), targets).backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    torch.testing.assert_close(pipe.clip_grad_norm_(0.1), expected, rtol=1e-14, atol=0)
    check_gradients(pipe, plain, rtol=1e-14, atol=0)
    pipe.close()


def test_a_norm_of_doubles_is_a_double(group):
    group[0].call(clips_doubles)
