"""Values between stages on workers: tensors, aliases, other values, and remote modules."""

from __future__ import annotations

import copy

import pytest
import torch
import worker_models as models
from torch import nn
from worker_pipes import CROSS_ENTROPY, check_gradients, gradients_of, held_anywhere, pipe_of, same


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
        check_gradients(pipe, plain)
    pipe.close()


@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize("places", ["11", "12", "01"])
def test_a_change_that_another_tensor_would_show_is_refused(group, places, changes):
    group[0].call(shares_memory, places, changes, "never")


def changes_its_input(places: str, checkpoint: str) -> None:
    import weft

    torch.manual_seed(0)
    plain = nn.Sequential(models.Centres(), nn.Linear(4, 3))
    placed = [
        weft.WithDevice(copy.deepcopy(layer), f"worker{place}/cpu")
        for layer, place in zip(plain, places, strict=True)
    ]
    pipe = weft.Pipe(nn.Sequential(*placed), 4, checkpoint, schedule="1f1b")
    inputs, targets = models.batch()
    before = inputs.clone()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    assert torch.equal(inputs, before)
    models.one_after_the_other(plain, inputs, targets, CROSS_ENTROPY, 4)
    check_gradients(pipe, plain)
    pipe.close()


@pytest.mark.parametrize("places", ["01", "10", "00"])
def test_a_first_stage_may_change_its_input(group, places):
    group[0].call(changes_its_input, places, "never")


def trains_its_own_modules() -> None:
    import weft

    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    placed = (first, weft.WithDevice(nn.Tanh(), "worker1/cpu"), weft.WithDevice(second, "cpu"))
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=2, schedule="1f1b")
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.5)
    before = first.weight.detach().clone()
    pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    assert torch.equal(first.weight.grad, gradients_of(pipe)["0.weight"])
    optimizer.step()
    assert not torch.equal(first.weight, before)
    state = pipe.state_dict()
    assert torch.equal(first.weight, state["0.weight"])
    assert torch.equal(second.weight, state["2.weight"])
    pipe.close()


def test_the_drivers_own_modules_are_trained_and_no_copies_of_them(group):
    group[0].call(trains_its_own_modules)


def loss_of_names(output: torch.Tensor, target: models.Named) -> torch.Tensor:
    return CROSS_ENTROPY(output + target.left, target.right)


def targets_are_a_named_tuple(places: str) -> None:
    pipe, (inputs, targets) = pipe_of(places, 3, "1f1b"), models.batch()
    named = models.Named(torch.zeros(models.ROWS, 3), targets)
    loss = pipe.step(inputs, named, loss=loss_of_names)
    torch.testing.assert_close(loss, pipe.step(inputs, targets, loss=CROSS_ENTROPY))
    pipe.close()


@pytest.mark.parametrize("places", ["0122", "1220"])
def test_targets_may_be_a_named_tuple(group, places):
    group[0].call(targets_are_a_named_tuple, places)


def forward_alone() -> tuple[str, int]:
    pipe, plain = pipe_of("0122", 3, "1f1b"), models.plain()
    inputs, _ = models.batch()
    with torch.no_grad():
        output = pipe(inputs)
    torch.testing.assert_close(output.to_here(), plain(inputs))
    assert not output.to_here().requires_grad
    pipe.eval()
    torch.testing.assert_close(pipe(inputs).to_here(), plain(inputs))
    held = held_anywhere(pipe)
    pipe.close()
    return output.owner_name(), held


def outputs_kept(pipe: str) -> int:
    from weft.pipe._workers.part import part_of

    return len(part_of(pipe)._outputs)


def forwards_leave_nothing() -> dict[str, int]:
    pipe = pipe_of("0122", 3, "1f1b")
    for _ in range(3):
        pipe(models.batch()[0]).to_here()
    with pytest.raises(RuntimeError):
        pipe(torch.ones(3, 9))
    found = pipe.at_workers(outputs_kept)
    pipe.close()
    return found


def test_workers_keep_no_outputs(group):
    assert set(group[0].call(forwards_leave_nothing).values()) == {0}


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


def whole_before_the_batch() -> None:
    import weft

    torch.manual_seed(0)
    first, last = models.Masked(), nn.Linear(3, 3)
    plain = copy.deepcopy(nn.ModuleList([first, last]))
    pipe = weft.Pipe(nn.Sequential(first, weft.WithDevice(last, "worker1/cpu")), 4, schedule="1f1b")
    inputs, targets = models.batch()
    mask = torch.rand(7)
    loss = pipe.step((weft.pipe.NoChunk(mask), inputs), targets, loss=CROSS_ENTROPY)
    expected = CROSS_ENTROPY(plain[1](plain[0](mask, inputs)), targets)
    expected.backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(first.layer.weight.grad, plain[0].layer.weight.grad)
    pipe.step((weft.pipe.NoChunk(mask.sum()), inputs), targets, loss=CROSS_ENTROPY)
    pipe.close()


def test_what_goes_whole_to_all_may_come_before_the_batch(group):
    group[0].call(whole_before_the_batch)


def no_rows() -> None:
    pipe = pipe_of("0122", 2, "1f1b")
    inputs, targets = (one[:0] for one in models.batch())
    assert pipe.step(inputs, targets, loss=CROSS_ENTROPY).isnan()
    assert all((one == 0).all() for one in gradients_of(pipe).values())
    pipe.close()


def test_a_mini_batch_without_rows_is_as_in_one_process(group):
    group[0].call(no_rows)


def sparse_values(layout: str, checkpoint: str) -> None:
    import weft

    torch.manual_seed(0)
    layers = [models.Multiplies(), models.Multiplies(), models.FirstOf()]
    plain = copy.deepcopy(layers)
    placed = [layers[0], *(weft.WithDevice(one, "worker1/cpu") for one in layers[1:])]
    pipe = weft.Pipe(nn.Sequential(*placed), 2, checkpoint, schedule="1f1b")
    matrix = (torch.rand(5, 5) > 0.5).float()
    sparse = matrix.to_sparse() if layout == "coo" else matrix.to_sparse_csr()
    inputs, _ = models.batch()
    pipe.step((inputs, weft.pipe.NoChunk(sparse)), inputs, loss=nn.MSELoss())
    for part in inputs.chunk(2):
        output = plain[2](*plain[1](*plain[0](part, sparse)))
        (nn.MSELoss()(output, part) / 2).backward()
    expected = nn.ModuleList(plain).named_parameters()
    same(gradients_of(pipe), {name: one.grad for name, one in expected})
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_tensors_go_between_workers(group, layout, checkpoint):
    group[0].call(sparse_values, layout, checkpoint)


def in_inference_mode(places: str) -> None:
    pipe, plain = pipe_of(places, 2, "1f1b"), models.plain()
    inputs, targets = models.batch()
    with torch.inference_mode():
        output = pipe(inputs)
        torch.testing.assert_close(output.to_here(), plain(inputs))
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()


@pytest.mark.parametrize("places", ["0122", "1220", "0000"])
def test_a_forward_in_inference_mode(group, places):
    group[0].call(in_inference_mode, places)


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
