"""What workers would have as copies of their own that differ, unseen, is refused; what can go there
arrives as it is.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import worker_models as models
from torch import Tensor, nn
from worker_pipes import CROSS_ENTROPY, gradients_of, held_anywhere, pipe_of_layers, same


class Marked(torch.Tensor):
    """A tensor of a class without anything of its own."""


class Marks(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).as_subclass(Marked)


class NeedsMarked(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        assert type(x) is Marked
        return super().forward(x)


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.as_subclass(torch.Tensor)


def passes_subclasses(places: str, schedule: str, checkpoint: str) -> None:
    torch.manual_seed(0)
    for last in ([nn.Linear(4, 3)], [nn.Linear(4, 3), Plain()]):
        layers = [Marks(4, 4), NeedsMarked(4, 4), nn.Sequential(*last)]
        plain = nn.Sequential(*copy.deepcopy(layers))
        pipe = pipe_of_layers(layers, places, 3, schedule, checkpoint)
        inputs, targets = models.batch()
        given, wanted = (inputs.clone().as_subclass(Marked).requires_grad_() for _ in range(2))
        pipe.step(given, targets, loss=CROSS_ENTROPY)
        models.one_after_the_other(plain, wanted, targets, CROSS_ENTROPY, 3)
        same(gradients_of(pipe), {name: one.grad for name, one in plain.named_parameters()})
        assert torch.equal(given.grad, wanted.grad)
        assert held_anywhere(pipe) == 0
        pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("places", ["012", "120", "112", "000"])
def test_gradients_of_a_subclass_between_workers(group, places, checkpoint):
    group[0].call(passes_subclasses, places, "1f1b", checkpoint)


class Unreadable(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("cannot read caf\udce9.png")  # as os.listdir gives such a name


def fails_with_another_text(places: str) -> str:
    layers = [nn.Linear(4, 4), Unreadable(), nn.Linear(4, 3)]
    pipe = pipe_of_layers(layers, places, 2, "1f1b", "never")
    with pytest.raises(RuntimeError) as caught:
        pipe.step(*models.batch(), loss=CROSS_ENTROPY)
    pipe.close()
    return str(caught.value)


@pytest.mark.parametrize("places", ["012", "210", "010", "111"])
def test_the_text_of_a_failure_may_have_what_utf_8_has_not(group, places):
    """The driver's own stage waited for ever."""
    assert "cannot read caf" in group[0].call(fails_with_another_text, places)


class SharesParameters(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.first = nn.Parameter(self.weight.detach()[:2])


class SharesBuffers(nn.Linear):
    """Two buffers, one of which the other shows."""

    def __init__(self, changes: bool) -> None:
        super().__init__(4, 3)
        self.changes = changes
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("begin", self.whole[:2])

    def forward(self, x: Tensor) -> Tensor:
        if self.changes:
            self.whole += 1
        return super().forward(x) + self.begin.sum()


class HasSlices(nn.Module):
    """Parameters of one memory, without a common element."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.ones(4, 4)
        self.even, self.odd = nn.Parameter(whole[:3, ::2]), nn.Parameter(whole[:3, 1::2])
        self.bias = nn.Parameter(whole[3, :3])

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.cat([self.even, self.odd], 1).t() + self.bias


def has_flat_weights() -> nn.Module:
    """An LSTM whose weights are in one memory, as cuDNN lays them out."""
    lstm = nn.LSTM(4, 3)
    flat = torch.cat([one.detach().flatten() for one in lstm.parameters()])
    sizes = [one.numel() for one in lstm.parameters()]
    for one, part in zip(lstm.parameters(), flat.split(sizes), strict=True):
        one.data = part.view_as(one)
    return nn.Sequential(lstm, First())


class First(nn.Module):
    def forward(self, values: tuple[Tensor, object]) -> Tensor:
        return values[0]


class SharesNumbers(nn.Linear):
    """Two storages of one memory."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        numbers = torch.ones(4).numpy()
        self.whole, self.end = (
            nn.Parameter(torch.from_numpy(one)) for one in (numbers, numbers[1:])
        )


class HasConstants(nn.Linear):
    """Expanded ones."""

    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("one", torch.ones(1).expand(3))
        self.register_buffer("two", torch.full((1,), 2.0).expand(3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.one + self.two


class Numbers(nn.Module):
    """An index for each number."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, 0] > 0).long()


def of_pairs(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.flatten(), target)


class LossWithMean(nn.Module):
    """Keeps a running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(output, target)
        self.mean += 0.1 * (loss.detach() - self.mean)
        return loss - self.mean


def step(layers: list[nn.Module], places: list[str], loss: nn.Module = CROSS_ENTROPY) -> None:
    pipe = pipe_of_layers(layers, places, 2, "gpipe", "never")
    try:
        pipe.step(*models.batch(), loss=loss)
    finally:
        pipe.close()


def refused() -> None:
    import weft

    embedding = nn.Sequential(Numbers(), nn.Embedding(8, 3, max_norm=0.1))
    with pytest.raises(RuntimeError, match=r"changes its parameter '0.1.weight', and has replicas"):
        step([embedding], ["12"])
    with pytest.raises(ValueError, match=r"'0.weight' gets its values with the first input"):
        step([nn.LazyLinear(3)], ["12"])
    with pytest.raises(ValueError, match=r"'0.\w+' and '0.\w+' have memory in common"):
        step([SharesParameters()], ["1"])
    with pytest.raises(ValueError, match=r"'0.whole' and '0.end' have memory in common"):
        step([SharesNumbers()], ["1"])
    with pytest.raises(RuntimeError, match=r"changes its buffer '0.whole', .*shared memory"):
        step([SharesBuffers(changes=True)], ["1"])
    with pytest.raises(RuntimeError, match=r"the loss changes its buffer 'mean'"):
        step([nn.Linear(4, 3)], ["1"], LossWithMean())
    scripts = torch.jit.script(nn.Linear(4, 3)), torch.jit.script(LossWithMean())
    with pytest.raises(RuntimeError, match=r"the loss changes its buffer"):
        step([scripts[0]], ["1"], scripts[1])
    step([scripts[0]], ["0"], scripts[1])
    step([embedding], ["1"])
    step([nn.LazyLinear(3)], ["1"])
    step([SharesParameters()], ["0"])
    step([SharesBuffers(changes=True)], ["0"])
    step([SharesBuffers(changes=False)], ["1"])
    step([HasSlices()], ["1"])
    step([has_flat_weights()], ["1"])
    step([HasConstants()], ["1"])
    step([nn.Linear(4, 3)], ["0"], LossWithMean())
    step([nn.Linear(4, 3)], ["1"], nn.CrossEntropyLoss(weight=torch.ones(3)))
    remote = weft.RemoteModule("worker1/cpu", nn.Linear, (4, 3))
    with pytest.raises(ValueError, match="child '0' is a RemoteModule, which is where it is"):
        weft.Pipe(nn.Sequential(weft.WithDevice(remote, "worker2/cpu")), schedule="gpipe")
    for place in ("0", "2"):
        pipe = pipe_of_layers([nn.Sequential(nn.Tanh(), remote)], place, 2, "gpipe", "never")
        inputs, targets = models.batch()
        with pytest.raises(ValueError, match=r"the remote module '0\.1' is inside a stage"):
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        with pytest.raises(ValueError, match=r"the remote module '0\.1' is inside a stage"):
            pipe(inputs)
        with torch.no_grad():
            torch.testing.assert_close(pipe(inputs).to_here(), remote(inputs.tanh()))
        pipe.close()


def test_copies_that_would_differ_are_refused(group):
    group[0].call(refused)


def rows() -> None:
    pipe = pipe_of_layers([models.Adds()], "1", 3, "gpipe", "never")
    pair = (torch.ones(6, 2, requires_grad=True), torch.ones(6, 2))
    sums = pipe.step(pair, torch.ones(6, 2), loss=nn.MSELoss())
    assert sums.item() == 1
    for inputs, targets in (
        ((torch.ones(7, 2), torch.ones(9, 2)), torch.ones(7, 2)),
        ((torch.ones(7, 2), torch.ones(7, 2)), torch.ones(9, 2)),
    ):
        with pytest.raises(
            ValueError, match=r"give micro-batches of 3, 3|give micro-batches of 1, 3"
        ):
            pipe.step(inputs, targets, loss=nn.MSELoss())
    uneven = (torch.ones(7, 2, requires_grad=True), torch.ones(3, 2))  # a row for each micro-batch
    assert pipe.step(uneven, torch.ones(7, 2), loss=nn.MSELoss()).item() == 1
    several = pipe.step(pair, torch.ones(12), loss=of_pairs)  # two for each row
    assert several.item() == 1
    pipe.close()


def test_rows_that_do_not_belong_together_are_refused(group):
    group[0].call(rows)


def rows_of_the_batch() -> None:
    """One input has a row for each micro-batch, in either place."""
    pipe = pipe_of_layers([models.Adds()], "1", 3, "gpipe", "never")
    shift, targets = torch.zeros(3, requires_grad=True), torch.zeros(7)
    batch = torch.arange(7.0)
    expected = nn.functional.mse_loss(batch, targets)
    for inputs in ((batch, shift), (shift, batch)):
        torch.testing.assert_close(pipe.step(inputs, targets, loss=nn.MSELoss()), expected)
        with pytest.raises(ValueError, match="their rows do not belong together"):
            pipe.step(inputs, torch.zeros(9), loss=nn.MSELoss())
    # Only the targets have the rows of the batch.
    alone = pipe.step((shift, shift), batch, loss=of_pairs)
    torch.testing.assert_close(alone, expected)
    pipe.close()


def test_a_loss_is_weighed_by_the_rows_of_the_batch(group):
    group[0].call(rows_of_the_batch)


def too_few_for_the_schedule() -> None:
    pipe = pipe_of_layers([nn.Linear(4, 4) for _ in range(4)], "1212", 4, "interleaved", "never")
    inputs, targets = models.batch()
    with pytest.raises(ValueError, match=r"^the schedule 'interleaved' takes a multiple of 2"):
        pipe.step(inputs[:3], targets[:3], loss=CROSS_ENTROPY)
    pipe.step(inputs[:2], targets[:2], loss=CROSS_ENTROPY)
    pipe.close()


def test_a_batch_with_too_few_rows_for_the_schedule_is_refused(group):
    group[0].call(too_few_for_the_schedule)


def losses_and_their_reductions() -> None:
    """Seven rows in three micro-batches."""
    pipe = pipe_of_layers([nn.Linear(4, 3)], "1", 3, "gpipe", "never")
    plain = nn.Linear(4, 3)
    plain.load_state_dict({name[2:]: one for name, one in pipe.state_dict().items()})
    inputs, targets = torch.randn(7, 4), torch.rand(7, 3)
    for loss in (
        nn.KLDivLoss(reduction="batchmean"),
        functools.partial(nn.functional.mse_loss, reduction="sum"),
        functools.partial(nn.functional.mse_loss),
        functools.partial(nn.functional.kl_div, reduction="batchmean", log_target=False),
        functools.partial(functools.partial(nn.functional.l1_loss, reduction="sum")),
    ):
        expected = loss(plain(inputs), targets)
        torch.testing.assert_close(pipe.step(inputs, targets, loss=loss), expected)
    with pytest.raises(ValueError, match=r"'none'\. .* give pipe\.step reduction="):
        pipe.step(inputs, targets, loss=functools.partial(torch.nn.MSELoss(), reduction="none"))
    pipe.close()


def test_a_loss_says_how_micro_batches_are_weighed(group):
    group[0].call(losses_and_their_reductions)


def losses_that_ignore_and_weigh_classes() -> None:
    """Micro-batches have other weights than each other; the first has none, unless -100 counts."""
    inputs, weight = torch.randn(8, 4), torch.tensor([0.1, 2.0, 0.7])
    without_first = torch.tensor([0.0, 1.0, 0.7])
    ignoring = torch.tensor([-100, -100, 1, -100, 0, 2, 2, 1])
    counting = torch.tensor([0, 0, 1, 2, 0, 2, 2, 1])
    for loss, targets in (
        (nn.CrossEntropyLoss(), ignoring),
        (nn.CrossEntropyLoss(weight=weight, label_smoothing=0.1), ignoring),
        (nn.CrossEntropyLoss(ignore_index=0), counting),
        (torch.jit.script(nn.CrossEntropyLoss(weight=weight)), ignoring),
        (nn.functional.cross_entropy, ignoring),
        (functools.partial(nn.functional.cross_entropy, weight=weight, ignore_index=0), counting),
        (nn.CrossEntropyLoss(weight=weight), torch.rand(8, 3).softmax(1)),
        (nn.CrossEntropyLoss(weight=without_first), counting),
        (torch.jit.script(nn.CrossEntropyLoss(weight=without_first)), counting),
        (nn.CrossEntropyLoss(weight=weight), counting.to(torch.uint8)),
    ):
        for layer in (nn.Linear(4, 3), torch.jit.script(nn.Linear(4, 3))):
            pipe = pipe_of_layers([layer], "1", 4, "gpipe", "except_last")
            plain = nn.Linear(4, 3)
            plain.load_state_dict({name[2:]: one for name, one in pipe.state_dict().items()})
            expected = loss(plain(inputs), targets)
            expected.backward()
            torch.testing.assert_close(pipe.step(inputs, targets, loss=loss), expected.detach())
            for name, gradient in gradients_of(pipe).items():
                torch.testing.assert_close(gradient, plain.get_parameter(name[2:]).grad)
            pipe.close()


def test_a_loss_of_classes_is_that_of_the_whole_batch(group):
    group[0].call(losses_that_ignore_and_weigh_classes)


class Sums(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


def tensors_of_no_dimension(places: str, scripts: bool) -> None:
    as_given = torch.jit.script if scripts else nn.Identity()
    layers = [as_given(nn.Linear(4, 3)), as_given(Sums())]
    pipe = pipe_of_layers(layers, places, 2, "gpipe", "never")
    inputs, targets = models.batch()
    for gradients in (False, True):
        with (
            torch.set_grad_enabled(gradients),
            pytest.raises(Exception, match="joined along dimension 0, and one has no dimension"),
        ):
            pipe(inputs)
    with pytest.raises(
        ValueError, match="targets are split along dimension 0, and a tensor has no"
    ):
        pipe.step(inputs, (targets, torch.tensor(1.0)), loss=CROSS_ENTROPY)
    pipe.close()


@pytest.mark.parametrize("scripts", [False, True])
@pytest.mark.parametrize("places", ["01", "10"])
def test_tensors_of_no_dimension_are_refused(group, places, scripts):
    group[0].call(tensors_of_no_dimension, places, scripts)


class Detached(nn.Module):
    """A loss without a graph."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square().mean().detach()


class OfTwoParts(nn.Module):
    """A loss that is a complex number."""

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        mean = (output - target).square().mean()
        return torch.complex(mean, mean)


def losses_without_a_gradient(place: str, checkpoint: str, scripts: bool) -> None:
    as_given = torch.jit.script if scripts else nn.Identity()
    pipe = pipe_of_layers([as_given(nn.Linear(4, 3))], [place], 2, "gpipe", checkpoint)
    inputs, targets = models.batch()[0], torch.zeros(models.ROWS, 3)
    for loss, said in (
        (Detached(), "does not require a gradient, so that a step trains nothing"),
        (OfTwoParts(), "must be a tensor of one real number"),
    ):
        with pytest.raises(RuntimeError, match=rf"stage 0 .*the loss of a micro-batch {said}"):
            pipe.step(inputs, targets, loss=as_given(loss))
    assert held_anywhere(pipe) == 0
    pipe.step(inputs, targets, loss=as_given(nn.MSELoss()))
    pipe.close()


@pytest.mark.parametrize("scripts", [False, True])
@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_a_loss_without_a_real_gradient_is_refused(group, checkpoint, scripts):
    for place in "01":
        group[0].call(losses_without_a_gradient, place, checkpoint, scripts)


class LeavesGradientsOff(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        torch.set_grad_enabled(False)
        return output


def leaves_gradients_off(places: str, checkpoint: str) -> None:
    for layers in (
        [LeavesGradientsOff(4, 4), nn.Linear(4, 3)],
        [nn.Linear(4, 4), LeavesGradientsOff(4, 3)],
    ):
        pipe = pipe_of_layers(layers, places, 2, "1f1b", checkpoint)
        inputs, targets = models.batch()
        with pytest.raises(RuntimeError, match=r"stage \d .*leaves them off"):
            pipe(inputs)
        with pytest.raises(RuntimeError, match=r"stage \d .*leaves them off"):
            pipe.step(inputs, targets, loss=CROSS_ENTROPY)
        assert torch.is_grad_enabled()
        with torch.no_grad():
            pipe(inputs).to_here()
        pipe.close()


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("places", ["01", "11"])
def test_a_layer_that_leaves_gradients_off_is_refused(group, places, checkpoint):
    group[0].call(leaves_gradients_off, places, checkpoint)


def with_another_default_device(places: str) -> float:
    """torch's default is for new tensors, and the loss is on the CPU."""
    layers = [nn.Linear(4, 4), nn.Linear(4, 3)]
    pipe = pipe_of_layers(layers, places, 2, "gpipe", "never")
    inputs, targets = models.batch()
    torch.set_default_device("meta")
    try:
        pipe.clip_grad_norm_(1.0)
        loss = pipe.step(inputs, targets, loss=CROSS_ENTROPY)
    finally:
        torch.set_default_device(None)
    pipe.close()
    return loss.item()


@pytest.mark.parametrize("places", ["01", "10", "12"])
def test_the_drivers_default_device_changes_no_step(group, places):
    assert group[0].call(with_another_default_device, places) > 0


def refuses_optimizers_and_layers() -> None:
    import weft

    pipe = pipe_of_layers([nn.Linear(4, 4), nn.Linear(4, 3)], "12", 2, "1f1b", "never")
    with pytest.raises(ValueError, match="LBFGS needs a closure that computes the loss again"):
        pipe.optimizer(torch.optim.LBFGS, lr=0.1)
    optimizer = pipe.optimizer(functools.partial(torch.optim.SGD, lr=0.1))
    with pytest.raises(AttributeError, match="no param_groups here: they are at the workers"):
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(()))
        scaler.unscale_(optimizer)
    pipe.close()
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(nn.Linear(4, 4), weft.WithDevice(normed, "worker1/cpu"))
    with pytest.raises(
        TypeError, match=r"(?s)layer '1' of the Pipe .* weft.RemoteModule\('worker1/cpu'"
    ):
        weft.Pipe(model, chunks=2, schedule="1f1b")


def test_optimizers_and_layers_that_cannot_be_there_are_named(group):
    group[0].call(refuses_optimizers_and_layers)
