"""weft.RemoteModule: calls, the rest of nn.Module, pickling, autograd, and scripting."""

from __future__ import annotations

import warnings

import pytest
import remote_models as models
import torch
from module_group import module_group
from torch import nn
from workers import WorkerError

group = module_group(3)


def remote(module_cls, *args, on="worker1", **options):
    import weft

    return weft.RemoteModule(f"{on}/cpu", module_cls, args, **options)


def same(left, right) -> None:
    torch.testing.assert_close(left, right, rtol=0, atol=0)


# Calls


def calls() -> None:
    x = torch.randn(5, 4)
    here = models.Scaled(4, start=1.5)
    there = remote(models.Scaled, 4, kwargs={"start": 1.5})
    same(there(x), here(x))
    same(there(x, 3.0, twice=True), here(x, 3.0, twice=True))
    same(there.forward_async(x, shifts=[torch.ones(3)]).wait(), here(x, shifts=[torch.ones(3)]))
    same(there.remote.encode(x), here.encode(x))
    same(there.remote_async.encode(x).wait(), here.encode(x))
    assert there.remote.mode() is True
    named = remote(models.TakesMethod)
    results = named(2, method="a"), named.remote.forward(2, method="a")
    assert results == (named.forward_async(2, method="a").wait(), "aa") == ("aa", "aa")


def test_calls_give_what_the_module_gives(group):
    group[0].call(calls)


def where(device: str) -> str:
    import weft

    try:
        return repr(weft.RemoteModule(device, nn.Linear, (2, 3))(torch.ones(1, 2)).shape)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("device", ["worker1", "worker1/cpu", "rank:1", "rank:1/cpu", "cpu"])
def test_forms_of_a_remote_device(group, device):
    assert group[0].call(where, device) == "torch.Size([1, 3])"


@pytest.mark.parametrize(
    ("device", "kind"),
    [("worker1/cpu/x", "ValueError"), ("/cpu", "ValueError"), ("worker1/tpu9", "RuntimeError")],
)
def test_a_bad_remote_device_is_refused_with_a_right_one(group, device, kind):
    text = group[0].call(where, device)
    assert text.startswith(kind)
    assert '"rank:N/device"' in text and device in text


def inputs_are_moved() -> None:
    """The device meta is one that needs no hardware."""
    import weft

    x = torch.ones(1)
    for scripted in (False, True):
        there = weft.RemoteModule("worker1/meta", models.Where, scripted=scripted)
        assert there(x, {"a": [x]}) == "meta meta"
        assert torch.jit.script(models.AsksWhere(there))(x) == "meta meta"


def test_inputs_are_moved_to_the_modules_device(group):
    group[0].call(inputs_are_moved)


def failing(module_cls, **options) -> str:
    module = remote(module_cls, **options)  # does not wait, so it cannot raise
    try:
        module(torch.ones(1))
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "it worked"


def late_errors() -> list[str]:
    """Whichever call is waited for first says what the constructor raised."""
    texts = []
    for wait in (
        lambda module: module.forward_async(torch.ones(1)).wait(),
        lambda module: module.remote_parameters_async().wait(),
        lambda module: module.remote.anything(),
        lambda module: module.state_dict(),
        lambda module: torch.jit.script(module),
        lambda module: module.get_module_rref().to_here(),
    ):
        try:
            wait(remote(models.Failing))
        except (ValueError, RuntimeError) as error:
            texts.append(str(error))
        else:
            texts.append("nothing was raised")
    return texts


def test_errors_of_the_constructor_show_wherever_one_waits(group):
    for text in group[0].call(late_errors):
        assert "this module cannot be made" in text, text


def not_a_module() -> str:
    return "text"


def test_errors_of_the_constructor_show_in_the_first_call(group):
    assert "this module cannot be made" in group[0].call(failing, models.Failing)
    assert "it returns an instance of <class 'str'>" in group[0].call(failing, not_a_module)


def test_arguments_that_are_no_tuple_are_refused():
    import weft

    for args in (2, "ab"):
        with pytest.raises(TypeError, match="args must be the tuple of module_cls's arguments"):
            weft.RemoteModule("worker1", nn.Linear, args)
    with pytest.raises(TypeError, match="module_cls must be a class or a function"):
        weft.RemoteModule("worker1", nn.Linear(2, 2))


def test_without_a_group_it_says_what_to_do():
    import weft

    with pytest.raises(AssertionError, match="init_rpc"):
        weft.RemoteModule("worker1", nn.Linear, (2, 2))


# A whole nn.Module


def as_part_of_a_model() -> None:
    model = models.Hybrid(remote(models.Scaled))
    assert [name for name, _ in model.named_parameters()] == ["local.weight", "local.bias"]
    assert "RemoteModule('worker1', device='cpu')" in repr(model)
    assert "Linear(in_features=4" in model.remote.remote_repr()
    model.to("cpu")
    model.eval()
    assert model.remote.remote.mode() is False
    model.train()
    assert model.remote.remote.mode() is True
    assert len(model.remote.remote_parameters()) == 4
    model.double()
    assert model(torch.ones(2, 2, dtype=torch.float64)).dtype == torch.float64


def test_it_is_a_whole_part_of_a_model(group):
    group[0].call(as_part_of_a_model)


def gradients_there() -> None:
    """`.grad` of the remote parameters: made by a local backward there, seen and zeroed from here."""
    module = remote(models.Scaled)
    x = torch.randn(2, 4)
    futures = [module.remote_parameters_async(), module.remote_parameters_async(recurse=False)]
    rrefs, own = (future.wait() for future in futures)
    assert [tuple(rref.to_here().shape) for rref in rrefs] == [(3, 4), (3,), (3,), (3,)]
    assert own == []
    module.remote.learn(x)
    plain = models.Scaled()
    plain(x).square().sum().backward()
    same(module.remote_grads()["linear.weight"], plain.linear.weight.grad)
    model = models.Hybrid(module)
    model.zero_grad()  # the model's own reaches only what is here
    assert module.remote_grads()["linear.weight"] is not None
    module.zero_grad(set_to_none=False)
    same(module.remote_grads()["linear.weight"], torch.zeros(3, 4))
    module.zero_grad()
    assert module.remote_grads()["linear.weight"] is None
    assert module.requires_grad_(False) is module
    assert not any(rref.to_here().requires_grad for rref in module.remote_parameters())


def test_gradients_there_can_be_seen_and_zeroed(group):
    group[0].call(gradients_there)


def states() -> None:
    model = models.Hybrid(remote(models.Scaled))
    plain = models.Hybrid(models.Scaled())
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(1)
    state = plain.state_dict()
    assert list(model.state_dict()) == list(state)
    assert model.state_dict()._metadata.keys() == state._metadata.keys()
    assert str(model.load_state_dict(state)) == "<All keys matched successfully>"
    x = torch.randn(3, 2)
    same(model(x), plain(x))
    for key, value in model.state_dict().items():
        same(value, state[key])

    del state["remote.linear.bias"]
    state["remote.more"] = torch.ones(1)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["remote.linear.bias"], ["remote.more"])
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        assert "remote.linear.bias" in str(error) and "remote.more" in str(error)
    else:
        raise AssertionError("a state that does not fit was taken")
    state["remote.linear.weight"] = torch.ones(9, 9)
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        assert "size mismatch" in str(error) and "worker1" in str(error)
    else:
        raise AssertionError("a tensor of another size was taken")


def test_state_dicts_are_those_of_the_plain_model(group):
    group[0].call(states)


def gradients(scripted: bool) -> None:
    import torch.distributed.autograd as dist_autograd

    plain = models.Hybrid(models.Scaled())
    python = models.Hybrid(remote(models.Scaled, scripted=scripted))
    model = torch.jit.script(python) if scripted else python
    x = torch.randn(6, 2)
    plain(x).square().sum().backward()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [model(x).square().sum()])
        local = dist_autograd.get_gradients(context)
        same(local[model.local.weight], plain.local.weight.grad)
        there = python.remote.remote_grads(context)
        same(there["linear.weight"], plain.remote.linear.weight.grad)
        assert there["norm.weight"] is None
    assert set(python.remote.remote_grads().values()) == {None}


@pytest.mark.parametrize("scripted", [False, True])
def test_gradients_are_those_of_the_plain_model(group, scripted):
    group[0].call(gradients, scripted)


def training() -> None:
    import torch.distributed.autograd as dist_autograd
    from torch.distributed.optim import DistributedOptimizer
    from torch.distributed.rpc import RRef

    model = models.Hybrid(remote(models.Scaled))
    own = [RRef(parameter) for parameter in model.parameters()]
    optimiser = DistributedOptimizer(
        torch.optim.SGD, own + model.remote.remote_parameters(), lr=0.01
    )
    x, losses = torch.randn(8, 2), []
    for _ in range(5):
        with dist_autograd.context() as context:
            loss = model(x).square().mean()
            dist_autograd.backward(context, [loss])
            optimiser.step(context)
            losses.append(loss.item())
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_it_trains(group):
    group[0].call(training)


def data_parallel(rank: int, meeting: str) -> torch.Tensor:
    import torch.distributed as dist
    import torch.distributed.autograd as dist_autograd
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("weft", init_method=meeting, rank=rank, world_size=2)
    for turn in range(2):  # both are made in one process, with its one random generator
        if turn == rank:
            model = models.Hybrid(remote(models.Scaled))
            model.remote.remote_parameters()  # it is there
        dist.barrier()
    parallel = DistributedDataParallel(model)
    plain = models.Hybrid(models.Scaled())
    inputs = [torch.full((2, 2), 1.0 + number) for number in range(2)]
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [parallel(inputs[rank]).square().sum()])
        mine = dist_autograd.get_gradients(context)[model.local.weight]
        assert model.remote.remote_grads(context)["linear.weight"] is not None
    sum(plain(x).square().sum() for x in inputs).backward()
    torch.testing.assert_close(mine, plain.local.weight.grad / 2)
    dist.barrier()
    dist.destroy_process_group()
    return mine


def test_ddp_leaves_the_remote_part_alone(group, tmp_path):
    for rank, worker in enumerate((0, 2)):
        group[worker].start(data_parallel, rank, f"file://{tmp_path}/ddp")
    first, second = (group[worker].result() for worker in (0, 2))
    same(first, second)


def hooked() -> None:
    model = remote(models.Scaled)
    x, seen = torch.randn(2, 4), []
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    model.register_forward_hook(lambda module, args, out: seen.append(out))
    same(model(x), models.Scaled()(x * 2))
    assert len(seen) == 1


def test_forward_hooks_run_here(group):
    group[0].call(hooked)


# Passed on


def use(module, x):
    return module(x) + module.remote.encode(x)


def script_and_use(module, x):
    return torch.jit.script(models.HybridAsync(module))(x)


def run(module, x):
    return module(x)


def passed_on() -> None:
    import torch.distributed.rpc as rpc

    import weft

    module = remote(models.Scaled)
    x = torch.randn(2, 4)
    here = models.Scaled()
    for to in ("worker1", "worker2"):
        same(rpc.rpc_sync(to, use, args=(module, x)), here(x) + here.encode(x))
        same(rpc.rpc_sync(to, script_and_use, args=(module, x)), here(x, 3.0, twice=True) + 1)
    another = weft.RemoteModule.init_from_module_rref("worker1", module.get_module_rref())
    same(another(x), here(x))
    same(torch.jit.script(another)(x), here(x))
    with warnings.catch_warnings(record=True) as caught:
        misled = weft.RemoteModule.init_from_module_rref("worker2", module.get_module_rref())
    assert "lives on worker 'worker1'" in str(caught[0].message)
    same(misled(x), here(x))
    scripted = torch.jit.script(models.HybridAsync(module))
    same(rpc.rpc_sync("worker2", run, args=(scripted, x)), here(x, 3.0, twice=True) + 1)


def test_one_that_was_passed_on_is_whole(group):
    group[0].call(passed_on)


def pickled() -> None:
    import copy
    import pickle

    module = remote(models.Scaled)
    for attempt in (pickle.dumps, copy.deepcopy):
        try:
            attempt(module)
        except RuntimeError as error:
            assert "can only be pickled when using RPC" in str(error)
        else:
            raise AssertionError("it was pickled")


def test_pickling_elsewhere_is_refused(group):
    group[0].call(pickled)


# TorchScript


def scripts() -> None:
    x = torch.randn(2, 2)
    for scripted in (False, True):
        plain = models.Hybrid(models.Scaled())
        model = models.Hybrid(remote(models.Scaled, scripted=scripted))
        compiled = torch.jit.script(model)
        same(compiled(x), plain(x))
        compiled = torch.jit.script(models.HybridAsync(model.remote))
        y = torch.randn(2, 4)
        same(compiled(y), plain.remote(y, 3.0, twice=True) + 1)
    same(torch.jit.script(models.Doubling(remote(models.ByName)))(x), x * 2)
    pair = torch.jit.script(remote(models.Pair))
    result, total = pair({"x": torch.ones(1, 2)}, [1, 2])
    assert result.shape == (1, 2) and total == 3


def test_it_scripts_with_its_types(group):
    group[0].call(scripts)


def named_tuples(path: str) -> None:
    x = torch.randn(2, 3)
    once = models.Named()(models.Batch(x, 2.0))
    twice = models.Named()(models.Batch(once.values, 3.0), [models.Batch(x, 1.0)])
    for scripted in (False, True):
        there = remote(models.Named, scripted=scripted, name=f"named{scripted}")
        result = there(models.Batch(x, 2.0), [models.Batch(x, 1.0)])
        assert isinstance(result, models.Scores)
        same(result[0], models.Named()(models.Batch(x, 2.0), [models.Batch(x, 1.0)]).values)
        model = torch.jit.script(models.UsesNamed(there))
        torch.jit.save(model, path)
        for one in (model, torch.jit.load(path), torch.jit.freeze(model.eval())):
            values, best = one(x)
            same(values, twice.values)
            assert best == twice.best[0]
    # In plain calls as well, by tuple or by name.
    import weft

    for batch in (models.Batch(x, 2.0), (x, 2)):
        values, best = weft.call("worker1/namedTrue", batch)
        same(values, x * 2)
        assert best == [int((x * 2).argmax())]


def test_named_tuples_are_values_and_signatures(group, tmp_path):
    group[0].call(named_tuples, str(tmp_path / "named.pt"))


def names_in_containers(path: str) -> None:
    x = torch.randn(2, 3)
    local = models.Contained()
    for scripted in (False, True):
        there = remote(models.Contained, scripted=scripted, name=f"contained{scripted}")
        batches = {"a": [models.Batch(x, 1.0), models.Batch(x, 2.0)]}
        report, every, some = there(batches, (models.Batch(x, 4.0), 5))
        assert isinstance(report, models.Report) and isinstance(report.all[1], models.Scores)
        same(every["a"][1].values, x * 2)
        assert isinstance(some, models.Scores) and some.best == [5]
        assert there(batches)[2] is None
        assert there.remote.one(x).best == [7]
        model = torch.jit.script(models.UsesContained(there))
        torch.jit.save(model, path)
        right, counts = models.UsesContained(local)(x)
        for one in (model, torch.jit.load(path), torch.jit.freeze(model.eval())):
            total, found = one(x)
            same(total, right)
            assert found == counts


def test_named_tuples_in_containers_keep_their_names(group, tmp_path):
    group[0].call(names_in_containers, str(tmp_path / "contained.pt"))


def loaded():
    """What a file holds: its classes are no process's."""
    import io

    file = io.BytesIO()
    torch.jit.save(torch.jit.script(models.Named()), file)
    file.seek(0)
    return torch.jit.load(file)


def names_of_classes_unknown_here() -> None:
    x = torch.ones(2, 3)
    # TorchScript cannot use the class: results have its fields, arguments are plain tuples.
    value, count = torch.jit.script(models.UsesLate(remote(models.TakesLate)))(x)
    same(value, x * 2)
    assert count == 3
    there = remote(loaded)
    scores = there(models.Batch(x, 2.0))
    assert (type(scores).__name__, scores._fields, scores.best) == (
        "Scores",
        ("values", "best"),
        [0],
    )
    first = models.Named()(models.Batch(x, 2.0))
    second = models.Named()(models.Batch(first.values, 3.0), [models.Batch(x, 1.0)])
    same(torch.jit.script(models.UsesNamed(there))(x)[0], second.values)


def test_named_tuples_of_unknown_classes(group):
    group[0].call(names_of_classes_unknown_here)


def argument_forms(path: str) -> None:
    x = torch.randn(2)
    local = models.UsesKeywords(models.Keywords())(x)
    model = torch.jit.script(models.UsesKeywords(remote(models.Keywords)))
    torch.jit.save(model, path)
    for one in (model, torch.jit.load(path)):
        result = one(x)
        assert result.keys() == local.keys()
        for key, (value, none) in result.items():
            same(value, local[key][0])
            assert none == local[key][1] == 4
    # TorchScript itself takes no keyword-only arguments with defaults.
    assert "cannot be scripted" in failing(models.Keywords, scripted=True)


def test_every_form_of_argument(group, tmp_path):
    group[0].call(argument_forms, str(tmp_path / "forms.pt"))


def one_form(name: str, path: str) -> None:
    """The remote call gives what the local module gives: scripted, saved and loaded, and in Python."""
    made, ask = getattr(models.Forms, name), getattr(models.Ask, name)
    right = ask(made())()
    there = remote(made)
    model = torch.jit.script(ask(there))
    torch.jit.save(model, path)
    for call in (model, torch.jit.load(path), ask(there)):
        torch.testing.assert_close(call(), right, rtol=0, atol=0) if has_tensors(
            right
        ) else check_equal(call(), right)


def has_tensors(value) -> bool:
    values = value.values() if isinstance(value, dict) else value
    return isinstance(value, torch.Tensor) or (
        isinstance(value, (list, tuple, dict)) and any(has_tensors(one) for one in values)
    )


def check_equal(value, right) -> None:
    assert value == right


FORMS = [name for name in vars(models.Forms) if not name.startswith("_")]


@pytest.mark.parametrize("name", FORMS)
def test_every_type_of_argument(group, tmp_path, name):
    group[0].call(one_form, name, str(tmp_path / "form.pt"))


def script_error(module_cls) -> str:
    try:
        torch.jit.script(remote(module_cls))
    except RuntimeError as error:
        return str(error)
    return "it was scripted"


@pytest.mark.parametrize(
    ("module_cls", "says"),
    [
        (models.Unannotated, "annotate it, e.g. `-> torch.Tensor`"),
        (models.MutableDefault, "make it None and its type Optional"),
        (models.Variadic, "name its arguments"),
        (models.Disordered, "put twice last"),
        (models.OwnType, "'x' of remote_models.OwnType.forward"),
    ],
)
def test_what_cannot_be_scripted_says_why(group, module_cls, says):
    text = group[0].call(script_error, module_cls)
    assert "cannot be scripted" in text and says in text, text


def save(path: str) -> torch.Tensor:
    model = models.Hybrid(remote(models.Scaled, name="head", replace=True))
    torch.jit.save(torch.jit.script(model), path)
    frozen = torch.jit.optimize_for_inference(torch.jit.script(model.eval()))
    x = torch.ones(2, 2)
    same(frozen(x), model(x))
    return model(x)


def load(path: str) -> torch.Tensor:
    return torch.jit.load(path)(torch.ones(2, 2))


def test_a_saved_model_binds_to_the_published_module(group, tmp_path):
    path = str(tmp_path / "model.pt")
    expected = group[0].call(save, path)
    same(group[2].call(load, path), expected)


def unpublish() -> None:
    import weft

    weft.unpublish("head")


def test_a_saved_model_without_its_module_says_so(group, tmp_path):
    path = str(tmp_path / "model.pt")
    group[0].call(save, path)
    group[1].call(unpublish)
    with pytest.raises(WorkerError, match=r"head.* is not published"):
        group[2].call(load, path)
