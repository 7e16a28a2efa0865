"""DeferredBatchNorm against a plain BatchNorm that sees the whole mini-batch."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from weft import _C
from weft.pipe._batchnorm import DeferredBatchNorm

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
KINDS = {
    "1d": (nn.BatchNorm1d, (4,)),
    "1d with length": (nn.BatchNorm1d, (4, 5)),
    "2d": (nn.BatchNorm2d, (4, 3, 3)),
    "3d": (nn.BatchNorm3d, (4, 2, 2, 2)),
}


def batches(shape, sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, *shape, generator=generator) * 2 + 5 for n in sizes]


def assert_same_statistics(one, other, **tolerance):
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), **tolerance or CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("momentum", [0.1, None, 1.0])
def test_statistics_are_those_of_the_mini_batch(kind, momentum):
    make, shape = KINDS[kind]
    plain = make(4, momentum=momentum)
    deferred = DeferredBatchNorm.convert_deferred_batch_norm(copy.deepcopy(plain), chunks=3)
    for batch in batches(shape, [12, 9, 30]):
        plain(batch)
        for part in batch.chunk(3):
            deferred(part)
        assert_same_statistics(deferred, plain)


def test_uneven_micro_batches():
    plain = nn.BatchNorm1d(4)
    deferred = DeferredBatchNorm.convert_deferred_batch_norm(copy.deepcopy(plain), chunks=3)
    (batch,) = batches((4,), [11])
    plain(batch)
    for part in batch.split([6, 3, 2]):
        deferred(part)
    assert_same_statistics(deferred, plain)


def test_nothing_changes_before_the_last_micro_batch():
    deferred = DeferredBatchNorm(4, chunks=2)
    before = copy.deepcopy(deferred.state_dict())
    (batch,) = batches((4,), [6])
    deferred(batch)
    torch.testing.assert_close(dict(deferred.state_dict()), dict(before), rtol=0, atol=0)
    deferred(batch)
    assert deferred.num_batches_tracked == 1
    assert not torch.equal(deferred.running_mean, before["running_mean"])


def test_each_micro_batch_is_normalised_by_itself_with_gradients():
    plain = nn.BatchNorm2d(4)
    nn.init.normal_(plain.weight)
    deferred = DeferredBatchNorm.convert_deferred_batch_norm(copy.deepcopy(plain), chunks=2)
    for part in batches((4, 3, 3), [5, 7]):
        mine, theirs = (part.clone().requires_grad_() for _ in range(2))
        got, wanted = deferred(mine), plain(theirs)
        torch.testing.assert_close(got, wanted, **CLOSE)
        for output in (got, wanted):
            (output.square() * torch.arange(4.0).view(4, 1, 1)).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad, **CLOSE)
    torch.testing.assert_close(deferred.weight.grad, plain.weight.grad, **CLOSE)
    torch.testing.assert_close(deferred.bias.grad, plain.bias.grad, **CLOSE)


def test_a_mean_far_from_zero_keeps_its_variance():
    plain = nn.BatchNorm1d(1, momentum=1.0)
    deferred = DeferredBatchNorm.convert_deferred_batch_norm(copy.deepcopy(plain), chunks=4)
    batch = torch.randn(400, 1, generator=torch.Generator().manual_seed(1)) + 10_000
    plain(batch)
    for part in batch.chunk(4):
        deferred(part)
    torch.testing.assert_close(deferred.running_var, plain.running_var, rtol=1e-3, atol=0)


def test_biased_is_upstreams_variance():
    deferred = DeferredBatchNorm(4, momentum=1.0, chunks=2, biased=True)
    (batch,) = batches((4,), [10])
    for part in batch.chunk(2):
        deferred(part)
    torch.testing.assert_close(deferred.running_var, batch.var(0, correction=0), **CLOSE)
    assert "biased=True" in repr(deferred)


def test_eval_uses_the_running_statistics_and_tracks_nothing():
    plain = nn.BatchNorm1d(4)
    (batch,) = batches((4,), [10])
    plain(batch)
    deferred = DeferredBatchNorm.convert_deferred_batch_norm(copy.deepcopy(plain), chunks=1)
    plain.eval(), deferred.eval()
    torch.testing.assert_close(deferred(batch), plain(batch), **CLOSE)
    assert_same_statistics(deferred, plain, rtol=0, atol=0)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_by_torch_is_not_tracked(reentrant):
    deferred = DeferredBatchNorm(4, momentum=1.0, chunks=2)
    (batch,) = batches((4,), [10])
    outputs = [
        checkpoint(deferred, part.clone().requires_grad_(), use_reentrant=reentrant)
        for part in batch.chunk(2)
    ]
    torch.cat(outputs).sum().backward()
    assert deferred.num_batches_tracked == 1
    torch.testing.assert_close(deferred.running_var, batch.var(0), **CLOSE)


def test_state_dict_is_the_plain_ones_both_ways():
    plain, deferred = nn.BatchNorm1d(4), DeferredBatchNorm(4, chunks=2)
    plain(batches((4,), [10])[0])
    deferred.load_state_dict(plain.state_dict())
    assert_same_statistics(deferred, plain, rtol=0, atol=0)
    plain.load_state_dict(deferred.state_dict())
    upstreams = {**plain.state_dict(), "sum": torch.zeros(4), "sum_squares": torch.zeros(4)}
    deferred.load_state_dict(upstreams)
    assert "sum" in upstreams


def test_convert_shares_parameters_and_keeps_what_the_layers_were():
    seen = []
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4))
    model[2].register_forward_hook(lambda *_: seen.append(1))
    model[1].eval()
    old = list(model)
    weight = model[2].weight
    model = DeferredBatchNorm.convert_deferred_batch_norm(model, 2)
    assert isinstance(model[1], DeferredBatchNorm) and isinstance(model[2], DeferredBatchNorm)
    assert model[0] is old[0] and model[2].weight is weight
    assert model[2].running_mean is old[2].running_mean
    assert (model[1].training, model[2].training) == (False, True)
    model(torch.randn(4, 4))
    assert seen == [1]
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        model[2](torch.randn(1, 4, 1, 1))


def test_convert_again():
    model = DeferredBatchNorm.convert_deferred_batch_norm(nn.BatchNorm1d(4), 2, biased=True)
    assert DeferredBatchNorm.convert_deferred_batch_norm(model, 2) is model
    again = DeferredBatchNorm.convert_deferred_batch_norm(model, 3)
    assert (again.chunks, again.biased) == (3, True) and again.weight is model.weight


def test_a_layer_with_two_names_stays_one():
    norm = nn.BatchNorm1d(4)
    model = nn.ModuleDict({"a": nn.Sequential(norm), "b": norm, "c": norm})
    model = DeferredBatchNorm.convert_deferred_batch_norm(model, 2)
    assert model["a"][0] is model["b"] is model["c"]


def test_what_is_not_converted():
    class Own(nn.BatchNorm1d):
        def forward(self, input):
            return super().forward(input) + 1

    untracked = nn.BatchNorm1d(4, track_running_stats=False)
    assert DeferredBatchNorm.convert_deferred_batch_norm(untracked, 2) is untracked
    with pytest.warns(UserWarning, match="a forward of its own"):
        assert type(DeferredBatchNorm.convert_deferred_batch_norm(Own(4), 2)) is Own
    with pytest.raises(NotImplementedError, match="span processes"):
        DeferredBatchNorm.convert_deferred_batch_norm(nn.SyncBatchNorm(4), 2)
    with pytest.raises(ValueError, match="no parameters yet"):
        DeferredBatchNorm.convert_deferred_batch_norm(nn.LazyBatchNorm1d(), 2)
    with pytest.raises(ValueError, match="number of chunks must be positive integer"):
        DeferredBatchNorm(4, chunks=0)


def parametrized() -> nn.Module:
    made = nn.BatchNorm1d(4)
    parametrize.register_parametrization(made, "weight", nn.Softplus())
    return made


def compiled_in_place() -> nn.Module:
    made = nn.BatchNorm1d(4)
    made.compile(backend="eager")
    return made


@pytest.mark.parametrize(
    "make",
    [
        parametrized,
        compiled_in_place,
        lambda: torch.compile(nn.BatchNorm1d(4), backend="eager"),
        lambda: torch.jit.script(nn.Sequential(nn.BatchNorm1d(4))),
    ],
    ids=["parametrized", "compiled in place", "compiled", "scripted"],
)
def test_what_cannot_be_converted_stays_as_it_is(make):
    plain, made = make(), make()
    with pytest.warns(UserWarning, match="stays as it is"):
        DeferredBatchNorm.convert_deferred_batch_norm(nn.Sequential(made), 2)
    (x,) = batches((4,), [6])
    for mode in (True, False):
        torch.testing.assert_close(made.train(mode)(x), plain.train(mode)(x))
    for a, b in zip(made.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_half_precision_statistics():
    plain = nn.BatchNorm1d(4, momentum=1.0)
    deferred = DeferredBatchNorm.convert_deferred_batch_norm(copy.deepcopy(plain).bfloat16(), 2)
    (batch,) = batches((4,), [40])
    plain(batch.bfloat16().float())
    for part in batch.bfloat16().chunk(2):
        deferred(part)
    assert deferred.running_var.dtype == torch.bfloat16
    assert_same_statistics(deferred.float(), plain, rtol=2e-2, atol=2e-2)


def test_meta_device_and_other_dtypes():
    deferred = DeferredBatchNorm(4, chunks=1, device="meta", dtype=torch.float64)
    assert deferred(torch.empty(6, 4, device="meta", dtype=torch.float64)).shape == (6, 4)


def test_layers_on_mixed_devices_stay_there():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4, device="meta", dtype=torch.float64))
    model = DeferredBatchNorm.convert_deferred_batch_norm(model, 2)
    for layer, device, dtype in zip(
        model, ("cpu", "meta"), (torch.float32, torch.float64), strict=True
    ):
        for part in (torch.ones(3, 4, device=device, dtype=dtype),) * 2:
            assert layer(part).device.type == device
        tensors = [value for value in vars(layer).values() if isinstance(value, torch.Tensor)]
        for tensor in (*tensors, *layer.parameters(), *layer.buffers()):
            assert tensor.device.type == device
            assert not tensor.is_floating_point() or tensor.dtype == dtype
    assert model[0].num_batches_tracked == 1


def test_copies_are_independent():
    deferred = DeferredBatchNorm(4, momentum=1.0, chunks=2)
    first, second = batches((4,), [6, 6])
    deferred(first)
    twins = [copy.deepcopy(deferred), pickle.loads(pickle.dumps(deferred))]
    for twin in twins:
        twin(second)
        assert twin.num_batches_tracked == 1
        torch.testing.assert_close(twin.running_mean, torch.cat([first, second]).mean(0), **CLOSE)
    assert deferred.num_batches_tracked == 0


MODES = pytest.mark.parametrize("mode", ["never", "except_last", "always"])


def piped(layers, mode, chunks=3, **options):
    import weft

    return weft.Pipe(nn.Sequential(*layers), chunks, mode, deferred_batch_norm=True, **options)


@MODES
@pytest.mark.usefixtures("alone")
def test_in_a_pipe_the_mini_batch_is_the_whole_call(mode):
    plain = nn.Sequential(nn.BatchNorm1d(4), nn.Tanh(), nn.BatchNorm1d(4, momentum=None))
    pipe = piped(copy.deepcopy(plain), mode)
    for size in (12, 7, 2, 30):  # 3, 3, 2 and 3 micro-batches; the last ones smaller
        (batch,) = batches((4,), [size * 2], seed=size)
        plain[0](batch)
        pipe(batch).local_value().sum().backward()
    assert_same_statistics(pipe[0], plain[0])
    # Its input was normalised by micro-batch, so only the number of updates is the plain one's.
    assert pipe[2].num_batches_tracked == 4
    assert all(p.grad is not None for p in pipe.parameters())


@MODES
@pytest.mark.usefixtures("alone")
def test_in_a_pipe_a_layer_may_be_called_twice(mode):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            self.norm(x * 3)
            return self.norm(x)

    plain = Twice()
    pipe = piped([copy.deepcopy(plain)], mode)
    (batch,) = batches((4,), [11])
    plain(batch)
    pipe(batch).local_value().sum().backward()
    assert_same_statistics(pipe[0].norm, plain.norm)


@MODES
@pytest.mark.usefixtures("alone")
def test_in_a_pipe_a_failed_mini_batch_does_not_count(mode):
    class Fragile(nn.Module):
        def forward(self, x):
            if x.mean() > 20:
                raise ValueError("too much")
            return x

    plain = nn.BatchNorm1d(4)
    pipe = piped([copy.deepcopy(plain), Fragile()], mode)
    # On threads the first stage may have run all micro-batches before the second stage fails.
    pipe._engine.set_threading(_C.pipe.Threading.inline)
    (batch,) = batches((4,), [9])
    pipe[0].bias.data.fill_(1000)
    for _ in range(2):
        with pytest.raises(ValueError, match="too much"):
            pipe(batch)
    pipe[0].bias.data.zero_()
    plain(batch)
    pipe(batch).local_value()
    assert_same_statistics(pipe[0], plain)


@pytest.mark.usefixtures("alone")
def test_in_a_pipe_eval_tracks_nothing_and_biased_is_kept():
    norm = DeferredBatchNorm.convert_deferred_batch_norm(nn.BatchNorm1d(4), 3, biased=True)
    pipe = piped([norm], "never")
    assert pipe[0].biased
    pipe.eval()
    (batch,) = batches((4,), [9])
    pipe(batch)
    assert pipe[0].num_batches_tracked == 0
