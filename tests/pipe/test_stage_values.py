"""What may go in, between partitions, and out."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import torch
from pipe_models import MODES, WAYS, assert_same, gradients, make_pipe
from torch import nn
from torch.utils import _pytree as pytree

from weft.pipe import NoChunk, Pipe

pytestmark = pytest.mark.usefixtures("alone")
Pair = namedtuple("Pair", "left right")


class Call(nn.Module):
    """A stage with a parameter and any function."""

    def __init__(self, function):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.function = function

    def forward(self, *values):
        return self.function(self.weight, *values)


def run(functions, *inputs, mode="except_last", way="threads", chunks=2):
    pipe = make_pipe(nn.Sequential(*map(Call, functions)), way, chunks=chunks, checkpoint=mode)
    return pipe, pipe(*inputs).local_value()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_non_tensors_and_none_cross_with_gradients(mode, way):
    pipe, output = run(
        [
            lambda w, x, name: (x * w, None, name, 3),
            lambda w, x, nothing, name, n: (x * w * n, [nothing, name]),
        ],
        torch.ones(4),
        "a name",
        mode=mode,
        way=way,
    )
    assert_same(output[0], torch.full((4,), 12.0))
    assert output[1] == [[None, "a name"], [None, "a name"]]
    output[0].sum().backward()
    assert_same(gradients(pipe), [torch.tensor(24.0), torch.tensor(24.0)])


@pytest.mark.parametrize("mode", MODES)
def test_integers_and_booleans_first(mode):
    pipe, output = run(
        [
            lambda w, x: (torch.arange(len(x)), x > 0, x * w),
            lambda w, index, positive, x: (index, positive, x * w),
        ],
        torch.ones(4),
        mode=mode,
    )
    assert output[0].tolist() == [0, 1, 0, 1]
    assert output[1].dtype == torch.bool
    assert not output[0].requires_grad
    output[2].sum().backward()
    assert_same(gradients(pipe), [torch.tensor(8.0), torch.tensor(8.0)])


@pytest.mark.parametrize("mode", MODES)
def test_lists_dicts_and_nesting(mode):
    pipe, output = run(
        [
            lambda w, x: [x * w, {"inner": (x, x * w), "label": "l"}],
            lambda w, x, more: {"sum": x + more["inner"][1] * w, "label": more["label"]},
            lambda _w, values: values,
        ],
        torch.ones(4),
        mode=mode,
    )
    assert list(output) == ["sum", "label"]
    assert output["label"] == ["l", "l"]
    assert_same(output["sum"], torch.full((4,), 6.0))
    output["sum"].sum().backward()
    assert_same(gradients(pipe)[:2], [torch.tensor(12.0), torch.tensor(8.0)])


@pytest.mark.parametrize("mode", MODES)
def test_named_tuples_and_ordered_dicts(mode):
    pipe, output = run(
        [lambda w, x: Pair(x * w, x), lambda w, left, right: Pair(left * w, right)],
        torch.ones(4),
        mode=mode,
    )
    output[0].sum().backward()  # an RRef keeps a named tuple of tensors as a tuple
    assert_same(gradients(pipe), [torch.tensor(8.0), torch.tensor(8.0)])
    _, output = run([lambda w, x: OrderedDict(a=x * w)], torch.ones(4))
    assert_same(output["a"], torch.full((4,), 2.0))


def test_nested_tensors_in_the_output_have_gradients():
    pipe, output = run([lambda w, x: (x * w, [x * w * 3])], torch.ones(4))
    assert len(output[1]) == 2
    sum(part[0].sum() for part in output[1]).backward()
    assert_same(gradients(pipe), [torch.tensor(12.0)])


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
@pytest.mark.parametrize("mode", MODES)
def test_tensors_of_other_kinds_go_from_stage_to_stage(mode):
    def ragged(w, x):
        return torch.nested.as_nested_tensor([row * w for row in (x[:1], x)])

    layers = [ragged, lambda w, n: torch.nested.to_padded_tensor(n, 0.0) * w]
    pipe, output = run(layers, torch.ones(4), mode=mode)
    assert output.shape == (4, 2)  # of two micro-batches
    output.sum().backward()
    assert_same(gradients(pipe), [torch.tensor(12.0)] * 2)


@pytest.mark.parametrize("mode", MODES)
def test_no_chunk(mode):
    table = torch.ones(3, requires_grad=True)
    x = torch.ones(4, 1, requires_grad=True)
    _, output = run([lambda w, x, t: x * t * w], x, NoChunk(table), mode=mode)
    assert output.shape == (4, 3)
    output.sum().backward()
    assert_same(table.grad, torch.full((3,), 8.0))
    assert_same(x.grad, torch.full((4, 1), 6.0))
    with pytest.raises(TypeError, match="NoChunk only supported for tensors"):
        NoChunk(3)


class Scaled(torch.Tensor):
    """A subclass of Python's alone, whose class a layer may ask for."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_tensors_stay_of_their_class(mode, way):
    def scale(w, x):
        assert type(x) is Scaled
        y = x.as_subclass(torch.Tensor) * w
        return y.as_subclass(Scaled), y.detach()

    def double(w, x, y):
        assert type(y) is torch.Tensor
        return x * (2 * w if isinstance(x, Scaled) else w)

    x = torch.ones(4).as_subclass(Scaled)
    pipe, output = run(
        [scale, double, lambda w, x: ((x * w).relu_(), x.relu())], x, mode=mode, way=way
    )
    assert [type(value) for value in output] == [Scaled, Scaled]
    assert_same(output[0].as_subclass(torch.Tensor), torch.full((4,), 16.0))
    output[0].sum().backward()
    assert_same(gradients(pipe), [torch.tensor(32.0)] * 3)


@dataclass
class Box:
    """Nothing that torch.utils._pytree knows."""

    content: Any


class Slots:
    __slots__ = ("content",)

    def __init__(self, content):
        self.content = content


HOLDERS = {
    "dataclass": Box,
    "slots": Slots,
    "in a list": lambda tensor: [1, Box(tensor)],
    "a dictionary inside": lambda tensor: Box({"inner": [tensor]}),
    "nested": lambda tensor: Box(Slots(Box(tensor))),
}


def opened(box):
    while not isinstance(box, torch.Tensor):
        if isinstance(box, dict):
            box = box["inner"]
        box = box[-1] if isinstance(box, list) else box.content
    return box


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_graph_inside_an_object_is_an_error(mode, holder):
    def give(w, x):
        return x * w, HOLDERS[holder](x.tanh() * w)

    with pytest.raises(TypeError, match=r"stage 1 gave a tensor .* of class (Box|Slots|list)"):
        run(
            [lambda w, x: x * w, give, lambda w, x, box: w * (x + opened(box))],
            torch.ones(4),
            mode=mode,
        )[1].sum().backward()


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_inside_an_object_beside_integers_is_an_error(mode):
    with pytest.raises(TypeError, match="stage 0 gave a tensor"):
        run(
            [lambda w, x: (torch.arange(2), Box(x * w)), lambda w, n, box: w * n * box.content],
            torch.ones(4),
            mode=mode,
        )[1].sum().backward()


@pytest.mark.parametrize("mode", MODES)
def test_objects_without_a_graph_pass(mode):
    layer = nn.Linear(1, 1)
    layer.kept = layer.weight * 2

    def give(w, x):
        return x * w, Box([x.detach(), torch.ones(2, requires_grad=True), layer, 10_000 * [[]]])

    pipe, output = run([give, lambda w, x, box: w * (x + box.content[0])], torch.ones(4), mode=mode)
    output.sum().backward()
    assert_same(gradients(pipe), [torch.tensor(8.0), torch.tensor(12.0)])


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_that_another_stage_kept_aside_is_an_error(way):
    kept = {}

    def keep(w, x):
        kept["tensor"] = x.tanh()
        return x * w

    with pytest.raises(RuntimeError, match=r"stage 2 uses a tensor .* neither an input of it"):
        run(
            [lambda w, x: x * w, keep, lambda w, x: w * (x + kept["tensor"])],
            torch.ones(4),
            mode="never",
            way=way,
            chunks=1,
        )


@torch.jit.script
class ScriptBox:
    def __init__(self, content: torch.Tensor):
        self.content = content


class MakeScriptBox(nn.Module):
    def forward(self, x: torch.Tensor):
        return x, ScriptBox(x.tanh())


@pytest.mark.parametrize("mode", MODES)
def test_a_graph_inside_an_object_of_torchscript_is_an_error(mode):
    pipe = make_pipe(
        nn.Sequential(nn.Linear(4, 4), torch.jit.script(MakeScriptBox())), chunks=2, checkpoint=mode
    )
    with pytest.raises(TypeError, match=r"stage 1 gave a tensor .* of class .*ScriptBox"):
        pipe(torch.ones(4, 4)).local_value()[0].sum().backward()


def test_what_is_refused():
    with pytest.raises(TypeError, match="inputs do not have any tensors"):
        run([lambda _w, x: x], "a")
    with pytest.raises(TypeError, match="inputs do not have any tensors"):
        run([lambda _w, x: x], NoChunk(torch.ones(2)))
    with pytest.raises(RuntimeError, match="different number of chunks"):
        run([lambda _w, x, _y: x], torch.ones(4), torch.ones(1))
    with pytest.raises(RuntimeError, match=r"an input of no dimensions .* wrap it in NoChunk"):
        run([lambda _w, x, y: x + y], torch.ones(4), torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="joined along dimension 0, and one has no dimension"):
        run([lambda _w, x: x.sum()], torch.ones(4))
    with pytest.raises(TypeError, match="returned no tensor"):
        run([lambda _w, _x: "text"], torch.ones(4))
    with pytest.raises(ValueError, match="same device as the first partition"):
        run([lambda _w, x: x], torch.ones(4, device="meta"))
    first = iter([True, False])
    with pytest.raises(TypeError, match="Types for microbatch outputs do not match"):
        run([lambda _w, x: (x, x if next(first) else 1)], torch.ones(4), way="inline")


@pytest.mark.parametrize("mode", MODES)
def test_dictionaries_are_joined_by_their_keys(mode):
    def boxes(w, x):
        high, low = {"high": (10 * w * x, 1)}, {"low": w * x}
        return {**low, **high, "n": 1 if x[0] < 2 else 2}

    x = torch.arange(4.0, requires_grad=True)
    pipe, output = run([boxes], x, mode=mode)
    assert list(output) == ["low", "high", "n"]
    assert output["n"] == [1, 2]
    assert_same(output["low"].detach(), 2 * x.detach())
    assert_same(output["high"][1][0].detach(), 20 * x.detach()[2:])
    (output["low"].sum() + output["high"][1][0].sum()).backward()
    assert_same(x.grad, torch.tensor([2.0, 2.0, 22.0, 22.0]))


Other = namedtuple("Other", "left right")
Side = Enum("Side", "LEFT RIGHT")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (lambda x: {"low": x}, lambda x: {"high": x}, r"keys \['low'\] .* keys \['high'\]"),
        (lambda x: {"low": x}, lambda x: {"low": x, 3: x}, r"of 1, .* of 2, with keys"),
        (
            lambda x: {"low": x, 3: x},
            lambda x: {3: x, "low": x},
            r"keys \['low', 3\] .* keys \[3, 'low'\]",
        ),
        (
            lambda x: dict.fromkeys(Side, x),
            lambda x: dict.fromkeys(reversed(Side), x),
            "LEFT.*RIGHT.*RIGHT.*LEFT",
        ),
        (lambda x: Pair(x, x), lambda x: Other(x, x), "a Pair .* an? Other"),
        (
            lambda x: OrderedDict(a=x),
            lambda x: OrderedDict(b=x),
            r"a OrderedDict with \['a'\] .* a OrderedDict with \['b'\]",
        ),
        (lambda x: x, lambda x: x.as_subclass(Scaled), "a tensor in .* a tensor, a Scaled"),
        (lambda x: (x, x), lambda x: (x, 1), "another value in micro-batch 1, at value 1"),
    ],
)
def test_other_containers_in_another_micro_batch_are_refused(first, second, says, mode):
    with pytest.raises(TypeError, match=says) as error:
        run([lambda w, x: (first if x[0] < 2 else second)(w * x)], torch.arange(4.0), mode=mode)
    assert "in micro-batch 0 and" in str(error.value)
    assert "in micro-batch 1" in str(error.value)


def test_meta_device():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).to("meta")
    pipe = Pipe(model, chunks=2)
    assert len(pipe.partitions) == 1
    output = pipe(torch.empty(6, 4, device="meta")).local_value()
    assert output.shape == (6, 2)
    output.sum().backward()
    assert all(p.grad.device.type == "meta" for p in pipe.parameters())


def test_empty_pipe_and_identity():
    x = torch.ones(2, requires_grad=True)
    assert Pipe(nn.Sequential())(x).local_value() is x
    output = Pipe(nn.Sequential(nn.Identity()), chunks=2)(x).local_value()
    output.sum().backward()
    assert_same(x.grad, torch.ones(2))


def test_script_modules_run_without_python():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return self.linear(x), {"a": x}

    class One(nn.Module):
        def forward(self, x, more: dict[str, torch.Tensor]):
            return [x + more["a"], x]

    for mode in MODES:
        torch.manual_seed(0)
        plain = nn.Sequential(Two(), One())
        scripted = nn.Sequential(torch.jit.script(plain[0]), torch.jit.script(One()))
        pipe = make_pipe(scripted, "threads", chunks=2, checkpoint=mode)
        x = torch.randn(4, 4)
        output = pipe(x).local_value()
        expected = plain[1](*plain[0](x))
        assert_same(list(output), expected)
        output[0].sum().backward()
        expected[0].sum().backward()
        assert_same(pipe[0].linear.weight.grad, plain[0].linear.weight.grad)
        plain.zero_grad()
        calls = []
        pipe.partitions[0].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        pipe(x)
        assert len(calls) == 2


@pytest.mark.parametrize("make", [lambda layer: layer, torch.jit.script], ids=["python", "script"])
@pytest.mark.parametrize("mode", MODES)
def test_a_layer_in_the_place_of_a_script_module(make, mode):
    layers = nn.Sequential(nn.Linear(4, 4), torch.jit.script(nn.Tanh()))
    pipe = make_pipe(layers, "threads", chunks=2, checkpoint=mode)
    x = torch.randn(4, 4)
    assert_same(pipe(x).local_value(), pipe[0](x).tanh())
    for other in (make(nn.ReLU()), make(nn.Linear(4, 4)), make(nn.Sigmoid())):
        pipe.partitions[1][0] = other
        output = pipe(x).local_value()
        expected = other(pipe[0](x))
        assert_same(output, expected)
        pipe.zero_grad()
        output.sum().backward()
        found = gradients(pipe)
        pipe.zero_grad()
        expected.sum().backward()
        assert_same(found, gradients(pipe))


class Chart:
    """A container whose context is no plain data: it is made anew for each micro-batch."""

    def __init__(self, rows, scale):
        self.rows, self.scale = rows, scale


pytree.register_pytree_node(
    Chart, lambda one: ([one.rows], one.scale), lambda rows, s: Chart(*rows, s)
)


def test_what_a_container_is_made_with_may_be_made_anew():
    def default(weight, x):
        return defaultdict(lambda: 0, rows=x * weight)

    def chart(weight, x):
        return Chart(x * weight, torch.finfo(torch.float32))

    x = torch.ones(4, 1)
    _, output = run([default], x)
    assert torch.equal(output["rows"], x * 2)
    _, output = run([chart], x)
    assert torch.equal(output.rows, x * 2)
    with pytest.raises(TypeError, match="in micro-batch 0 and"):
        run(
            [lambda weight, x: defaultdict(int, {str(x[0].item()): x})],
            torch.arange(4.0).view(4, 1),
        )
