"""Backward from the driver through a pipeline over workers: loss.backward(), and distributed autograd."""

from __future__ import annotations

import contextlib
import copy
import gc

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import worker_models as models
from torch import Tensor, nn
from torch.distributed.optim import DistributedOptimizer
from torch.utils.checkpoint import checkpoint
from waiting import wait_until
from worker_pipes import (
    CROSS_ENTROPY,
    check_gradients,
    gradients_of,
    graphs_held,
    held_anywhere,
    pipe_of,
    pipe_of_layers,
    same,
)
from workers import Group


def reference(model: nn.Module, inputs: Tensor, chunks: int) -> Tensor:
    return torch.cat([model(part) for part in inputs.chunk(chunks)])


def backward_of(model: nn.Module, inputs: Tensor, chunks: int, found: Tensor) -> None:
    """That of the micro-batches one after the other, from the gradient of the whole output."""
    for part, gradient in zip(inputs.chunk(chunks), found.chunk(chunks), strict=True):
        model(part).backward(gradient)


def loss_goes_backward(places: str, chunks: int, schedule: str, checkpoint: str) -> None:
    pipe, plain = pipe_of(places, chunks, schedule, checkpoint), models.plain()
    optimizer = pipe.optimizer(torch.optim.SGD, lr=0.1)
    own = torch.optim.SGD(plain.parameters(), lr=0.1)
    for turn in range(2):
        inputs, targets = models.batch(turn)
        optimizer.zero_grad()
        own.zero_grad()
        output = pipe(inputs).to_here()
        assert output.requires_grad
        expected = reference(plain, inputs, chunks).detach().requires_grad_()
        assert torch.equal(output, expected)
        loss, wanted = CROSS_ENTROPY(output, targets), CROSS_ENTROPY(expected, targets)
        loss.backward()
        wanted.backward()
        backward_of(plain, inputs, chunks, expected.grad)
        same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
        assert held_anywhere(pipe) == graphs_held(pipe) == 0
        optimizer.step()
        own.step()
    same(pipe.state_dict(), plain.state_dict())
    pipe.close()


@pytest.mark.parametrize(
    ("schedule", "checkpoint"),
    [("gpipe", "never"), ("1f1b", "except_last"), ("1f1b", "always"), ("zb", "never")],
)
@pytest.mark.parametrize("places", ["0000", "0122", "1212", "1111", "2210"])
def test_a_loss_of_the_output_goes_backward(group, places, schedule, checkpoint):
    for chunks in (1, 3, 4):
        group[0].call(loss_goes_backward, places, chunks, schedule, checkpoint)


def inputs_get_gradients(places: str, way: str) -> None:
    """Also through what the driver did to make them."""
    import weft

    torch.manual_seed(5)
    table = nn.Embedding(7, 4)
    scale = torch.rand(4, requires_grad=True)
    last, copy_of = nn.Linear(4, 3), nn.Linear(4, 3)
    copy_of.load_state_dict(last.state_dict())
    placed = [models.Scales(), nn.Tanh(), last]
    placed = [
        weft.WithDevice(one, f"worker{at}/cpu") for one, at in zip(placed, places, strict=True)
    ]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=3, schedule="gpipe")
    words, targets = torch.randint(7, (10,)), torch.randint(3, (10,))
    if way == "step":
        pipe.step((table(words), weft.pipe.NoChunk(scale)), targets, loss=CROSS_ENTROPY)
    else:
        output = pipe(table(words), weft.pipe.NoChunk(scale)).to_here()
        CROSS_ENTROPY(output, targets).backward()
    found = table.weight.grad, scale.grad
    table.weight.grad = scale.grad = None
    CROSS_ENTROPY(copy_of(torch.tanh(table(words) * scale)), targets).backward()
    torch.testing.assert_close(found, (table.weight.grad, scale.grad))
    torch.testing.assert_close(gradients_of(pipe)["2.weight"], copy_of.weight.grad)
    pipe.close()


@pytest.mark.parametrize("way", ["step", "backward"])
@pytest.mark.parametrize("places", ["012", "120", "112"])
def test_inputs_that_want_gradients_get_them(group, places, way):
    group[0].call(inputs_get_gradients, places, way)


def only_what_is_asked_for() -> None:
    pipe = pipe_of("0122", 2, "gpipe")
    inputs, targets = models.batch()
    inputs.requires_grad_()
    loss = CROSS_ENTROPY(pipe(inputs).to_here(), targets)
    (found,) = torch.autograd.grad(loss, [inputs])
    plain, own = models.plain(), inputs.detach().requires_grad_()
    (expected,) = torch.autograd.grad(CROSS_ENTROPY(plain(own), targets), [own])
    torch.testing.assert_close(found, expected)
    assert inputs.grad is None
    assert all(one is None for one in gradients_of(pipe).values())
    pipe.close()


def test_torch_autograd_grad_leaves_the_parameters_alone(group):
    group[0].call(only_what_is_asked_for)


def has_saved_tensor_hooks_around_it(places: str, around: str, mode: str) -> None:
    """The stages here are run without them, as those at the workers are."""
    pipe, plain = pipe_of(places, 3, "1f1b", mode), models.plain()
    inputs, targets = models.batch()
    found, wanted = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    if around == "checkpoint":
        output = checkpoint(lambda x: pipe(x).to_here().tanh(), found, use_reentrant=False)
    else:
        with torch.autograd.graph.save_on_cpu():
            output = pipe(found).to_here().tanh()
    CROSS_ENTROPY(output, targets).backward()
    CROSS_ENTROPY(plain(wanted).tanh(), targets).backward()
    torch.testing.assert_close(found.grad, wanted.grad)
    check_gradients(pipe, plain)
    pipe.close()


@pytest.mark.parametrize("mode", ["never", "always"])
@pytest.mark.parametrize("around", ["checkpoint", "save_on_cpu"])
@pytest.mark.parametrize("places", ["0122", "1220", "0000"])
def test_saved_tensor_hooks_around_a_pipe(group, places, around, mode):
    group[0].call(has_saved_tensor_hooks_around_it, places, around, mode)


class CallsItsPipe(nn.Linear):
    """In the driver's own stage."""

    pipes: list[nn.Module] = []

    def forward(self, x: Tensor) -> Tensor:
        for pipe in self.pipes:
            pipe(x)
        return super().forward(x)


def is_called_by_its_own_stage() -> None:
    pipe = pipe_of_layers([CallsItsPipe(4, 4), nn.Linear(4, 3)], "01", 2, "1f1b", "never")
    inputs, targets = models.batch()
    CallsItsPipe.pipes.append(pipe)
    for run in (lambda: pipe(inputs), lambda: pipe.step(inputs, targets, loss=CROSS_ENTROPY)):
        with pytest.raises(RuntimeError, match=r"stage 0 .* another one cannot run inside of it"):
            run()
    CallsItsPipe.pipes.clear()
    pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    pipe.close()


def test_a_stage_that_calls_its_own_pipe_is_refused(group):
    group[0].call(is_called_by_its_own_stage)


def several_backwards(checkpoint: str) -> None:
    pipe, (inputs, targets) = pipe_of("0122", 3, "gpipe", checkpoint), models.batch()
    inputs.requires_grad_()
    rref = pipe(inputs)
    with torch.no_grad():
        assert rref.to_here().requires_grad
    assert rref.to_here() is rref.to_here()
    loss = CROSS_ENTROPY(rref.to_here(), targets)
    loss.backward(retain_graph=True)
    assert graphs_held(pipe) > 0
    once = {name: one.clone() for name, one in gradients_of(pipe).items()}
    first = inputs.grad.clone()
    loss.backward()
    for name, one in gradients_of(pipe).items():
        torch.testing.assert_close(one, once[name] * 2)
    assert torch.equal(inputs.grad, first * 2)
    assert graphs_held(pipe) == 0
    with pytest.raises(RuntimeError, match=r"second time|second backward"):
        loss.backward()
    with pytest.raises(RuntimeError, match="the first has freed the graph at the workers"):
        rref.to_here().sum().backward()
    with pytest.raises(RuntimeError, match="create_graph=True does not work through"):
        pipe(inputs).to_here().sum().backward(create_graph=True)
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_several_backwards(group, checkpoint):
    group[0].call(several_backwards, checkpoint)


def outputs_in_any_order() -> None:
    """Two forwards, then the backward of the first, the second, or both in one loss."""
    for order in ("first", "second", "together"):
        pipe, plain = pipe_of("0122", 3, "1f1b"), models.plain()
        batches = [models.batch(1), models.batch(2)]
        losses = [CROSS_ENTROPY(pipe(one).to_here(), targets) for one, targets in batches]
        if order == "together":
            (losses[0] + 2 * losses[1]).backward()
        else:
            for loss in losses if order == "first" else losses[::-1]:
                loss.backward()
        for (one, targets), weight in zip(
            batches, (1, 2) if order == "together" else (1, 1), strict=True
        ):
            (CROSS_ENTROPY(plain(one), targets) * weight).backward()
        check_gradients(pipe, plain)
        pipe.close()


def test_forwards_and_backwards_in_any_order(group):
    group[0].call(outputs_in_any_order)


def nothing_is_kept() -> None:
    pipe, (inputs, _) = pipe_of("0122", 3, "gpipe"), models.batch()
    output = pipe(inputs)
    assert graphs_held(pipe) > 0
    del output
    gc.collect()
    wait_until(lambda: graphs_held(pipe) == 0, "a dropped RRef frees the graph")
    output = pipe(inputs).to_here()
    loss = output.sum()
    assert graphs_held(pipe) > 0
    del output, loss
    gc.collect()
    wait_until(lambda: graphs_held(pipe) == 0, "a dropped loss frees the graph")
    with torch.no_grad():
        output = pipe(inputs)
    assert graphs_held(pipe) == 0
    assert not output.to_here().requires_grad
    with pytest.raises(RuntimeError, match=r"size|shape"):
        pipe(torch.ones(3, 9))
    gc.collect()
    wait_until(lambda: graphs_held(pipe) == 0, "a failed forward keeps nothing")
    pipe.eval()
    output = pipe(inputs)
    assert graphs_held(pipe) == 0
    assert not output.to_here().requires_grad
    with pytest.raises(ValueError, match="has no graph after eval"):
        pipe(inputs.requires_grad_())
    pipe.train()
    kept = pipe(inputs)
    pipe.close()
    with pytest.raises(RuntimeError, match="the Pipe was closed"):
        kept.to_here().sum().backward()


def test_graphs_go_with_their_outputs(group):
    group[0].call(nothing_is_kept)


def fails_in_the_backward() -> None:
    import weft

    first, second = nn.Linear(4, 4), nn.Linear(4, 3)
    failing = weft.WithDevice(models.Failing(2, True), "worker2/cpu")
    model = nn.Sequential(weft.WithDevice(first, "worker1/cpu"), failing, second)
    pipe = weft.Pipe(model, chunks=4, schedule="1f1b", checkpoint="never")
    inputs, targets = models.batch()
    output = pipe(inputs).to_here()
    with pytest.raises(RuntimeError, match="failed in the backward of micro-batch 1"):
        CROSS_ENTROPY(output, targets).backward()
    assert held_anywhere(pipe) == graphs_held(pipe) == 0
    CROSS_ENTROPY(pipe(inputs).to_here(), targets).backward()
    assert gradients_of(pipe)["2.weight"] is not None
    pipe.close()


def test_a_backward_that_fails_names_the_stage_and_frees_the_graph(group):
    group[0].call(fails_in_the_backward)


def asks_something_of_its_input(make: type[nn.Module], places: str, checkpoint: str) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), make(), nn.Linear(4, 3)]
    plain = copy.deepcopy(nn.Sequential(*layers))
    if make is models.Slope:  # of inputs that want no gradient
        layers, plain = layers[1:], plain[1:]
    pipe = pipe_of_layers(layers, places[-len(layers) :], 2, "1f1b", checkpoint)
    inputs, targets = models.batch()
    pipe.step(inputs.clone(), targets, loss=CROSS_ENTROPY)
    models.one_after_the_other(plain, inputs.clone(), targets, CROSS_ENTROPY, 2)
    for found, one in zip(gradients_of(pipe).values(), plain.parameters(), strict=True):
        assert torch.equal(found, one.grad)
    pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("places", ["012", "120"])
@pytest.mark.parametrize("make", [models.HooksItsInput, models.Slope])
def test_a_stage_may_hook_its_input_or_ask_for_its_gradient(group, make, places, checkpoint):
    group[0].call(asks_something_of_its_input, make, places, checkpoint)


def gives_a_structure() -> None:
    """Outputs of which the loss uses some, one twice; others want no gradient."""
    import weft

    torch.manual_seed(0)
    first = nn.Linear(4, 4)
    plain = nn.Linear(4, 4)
    plain.load_state_dict(first.state_dict())
    placed = [
        weft.WithDevice(first, "worker1/cpu"),
        weft.WithDevice(models.Several(), "worker2/cpu"),
    ]
    pipe = weft.Pipe(nn.Sequential(*placed), chunks=3, schedule="gpipe")
    inputs, _ = models.batch()
    double, more, text = pipe(inputs).to_here()
    assert text == ["text"] * 3
    assert not more[0]["rows"].requires_grad
    (double * torch.cat([one["same"] for one in more])).sum().backward()
    (2 * plain(inputs) * plain(inputs)).sum().backward()
    torch.testing.assert_close(gradients_of(pipe)["0.weight"], plain.weight.grad)
    pipe.close()


def test_outputs_may_be_nested(group):
    group[0].call(gives_a_structure)


def in_a_context(places: str, checkpoint: str) -> None:
    pipe, plain = pipe_of(places, 3, "1f1b", checkpoint), models.plain()
    head, own = nn.Linear(3, 3), nn.Linear(3, 3)
    own.load_state_dict(head.state_dict())
    inputs, targets = models.batch()
    with dist_autograd.context() as context:
        output = pipe(inputs)
        output = output.to_here()
        dist_autograd.backward(context, [CROSS_ENTROPY(head(output), targets)])
        found = pipe.at_workers(gradients_in, context)
        here = dist_autograd.get_gradients(context)
    CROSS_ENTROPY(own(plain(inputs)), targets).backward()
    torch.testing.assert_close(here[head.weight], own.weight.grad)
    assert head.weight.grad is None
    assert all(one is None for one in gradients_of(pipe).values())
    merged = {name: one for each in found.values() for name, one in each.items()}
    expected = {name: one.grad for name, one in plain.named_parameters()}
    assert merged.keys() == expected.keys()
    for name, one in expected.items():
        torch.testing.assert_close(merged[name], one)
    wait_until(lambda: not any(pipe.at_workers(has_context, context).values()), "contexts end")
    assert held_anywhere(pipe) == graphs_held(pipe) == 0
    pipe.close()


def gradients_in(pipe: str, context: int) -> dict[str, Tensor]:
    from weft.pipe._workers.part import part_of
    from weft.pipe._workers.state import parameters_of

    found = dist_autograd.get_gradients(context)
    names = {one: name for name, one in parameters_of(part_of(pipe).layers).items()}
    return {names[one]: gradient for one, gradient in found.items() if one in names}


def has_context(pipe: str, context: int) -> bool:
    with contextlib.suppress(RuntimeError):
        dist_autograd._retrieve_context(context)
        return True
    return False


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("places", ["0000", "0122", "1212", "2210"])
def test_gradients_go_to_a_distributed_autograd_context(group, places, checkpoint):
    group[0].call(in_a_context, places, checkpoint)


def trains_in_contexts() -> None:
    pipe, plain = pipe_of("0122", 2, "gpipe"), models.plain()
    head, own_head = nn.Linear(3, 3), nn.Linear(3, 3)
    own_head.load_state_dict(head.state_dict())
    parameters = pipe.remote_parameters() + [rpc.RRef(one) for one in head.parameters()]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.1)
    own = torch.optim.SGD([*plain.parameters(), *own_head.parameters()], lr=0.1)
    for turn in range(3):
        inputs, targets = models.batch(turn)
        with dist_autograd.context() as context:
            loss = CROSS_ENTROPY(head(pipe(inputs).to_here()), targets)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        own.zero_grad()
        CROSS_ENTROPY(own_head(plain(inputs)), targets).backward()
        own.step()
    for name, one in pipe.state_dict().items():
        torch.testing.assert_close(one, plain.state_dict()[name])
    torch.testing.assert_close(head.weight, own_head.weight)
    pipe.close()


def test_a_distributed_optimizer_trains_a_pipe(group):
    group[0].call(trains_in_contexts)


def the_wrong_context() -> None:
    pipe, (inputs, targets) = pipe_of("0122", 2, "gpipe"), models.batch()
    output = pipe(inputs).to_here()
    with (
        dist_autograd.context() as context,
        pytest.raises(RuntimeError, match="taken outside of the torch"),
    ):
        dist_autograd.backward(context, [CROSS_ENTROPY(output, targets)])
    with dist_autograd.context() as context:
        output = pipe(inputs).to_here()
        output.sum().backward()  # not that of the context
        assert gradients_of(pipe)["0.weight"] is not None
        assert not any(pipe.at_workers(gradients_in, context)["worker0"])
    pipe.close()


def test_the_backward_of_another_context_is_refused(group):
    group[0].call(the_wrong_context)


def keeps_a_graph() -> None:
    global kept
    pipe = pipe_of("1122", 3, "gpipe")
    kept = pipe, pipe(models.batch()[0])
    assert graphs_held(pipe) > 0


def graphs_here() -> int:
    from weft.pipe._workers.part import parts

    return sum(one.kept for part in parts.values() for one in part.graphs)


def wait_until_graphs_are_gone() -> None:
    gc.collect()
    wait_until(lambda: graphs_here() == 0, "the graphs of a lost driver are gone")


def test_a_lost_driver_keeps_no_graph_alive():
    with Group(3) as workers:
        workers[0].call(keeps_a_graph)
        assert workers[1].call(graphs_here) == 3
        workers[0].kill()
        for worker in (workers[1], workers[2]):
            worker.call(wait_until_graphs_are_gone)
            worker.kill()


def fails_with_a_graph_that_is_kept() -> None:
    """After the gradient of one input was there."""
    pipe = pipe_of_layers([models.FailsLate()], "1", 1, "gpipe", "never")
    inputs = [torch.randn(4, 3, requires_grad=True) for _ in range(2)]
    total = pipe(*inputs).to_here().sum()
    with pytest.raises(RuntimeError, match="the backward fails on purpose"):
        total.backward(retain_graph=True)
    total.backward()
    for one in inputs:
        assert torch.equal(one.grad, torch.full((4, 3), 2.0))
    pipe.close()


def test_a_backward_after_one_that_failed_gives_the_gradients_of_one(group):
    group[0].call(fails_with_a_graph_that_is_kept)
