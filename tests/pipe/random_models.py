"""Random sequential models: what a stage may do, written as data.

A model is a tuple of stages, a stage a tuple of operations (Op), each on one of the stage's values.
The values of a stage are the next one's arguments. Matrices are of WIDTH columns, so any operation
follows any other, and a model stays one when a part of it is taken away.

OPS holds every operation by its name; random_draw.py puts models together, and random_programs.py runs them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.utils.parametrize as parametrize
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import weft
from weft.pipe.skip import pop, skippable, stash

WIDTH = 4


@dataclasses.dataclass(frozen=True)
class Op:
    name: str
    #: Which of the stage's matrices, counted around.
    at: int = 0
    #: The name of a shared weight, or of a skip.
    arg: str | None = None
    #: What it is around.
    inner: tuple[Op, ...] = ()
    #: The first mini-batch in which it does something.
    since: int = 0

    def __repr__(self) -> str:
        fields = [repr(self.name)]
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                fields.append(f"{field.name}={value!r}")
        return f"Op({', '.join(fields)})"


def walk(ops: tuple[Op, ...], path: str = "op") -> Iterator[tuple[str, Op]]:
    """All operations, those inside others included, each with its place's name."""
    for k, op in enumerate(ops):
        yield f"{path}{k}", op
        yield from walk(op.inner, f"{path}{k}_")


class Stage(nn.Module):
    """Runs operations on its arguments; what is left of them is its result."""

    def __init__(self, ops: tuple[Op, ...], shared: dict[str, nn.Parameter]) -> None:
        super().__init__()
        self.ops = ops
        #: The number of the present mini-batch.
        self.now = 0
        self.parts = nn.ModuleDict()
        for path, op in walk(ops):
            if op.name in PARTS:
                self.parts[path] = part = PARTS[op.name]()
                if op.arg is not None:
                    part.weight = shared[op.arg]

    def forward(self, *arguments: Any) -> Any:
        values = self.unpacked(arguments)
        self.perform(self.ops, "op", values)
        return values[0] if len(values) == 1 else tuple(values)

    @staticmethod
    def unpacked(arguments: tuple[Any, ...]) -> list[Any]:
        values = [value["inner"] if isinstance(value, dict) else value for value in arguments]
        tables = [
            v for v in values if isinstance(v, Tensor) and v.dim() == 1 and v.is_floating_point()
        ]
        values = [v for v in values if not any(v is table for table in tables)]
        for table in tables:  # the mini-batch's NoChunk
            values[matrices(values)[0]] = values[matrices(values)[0]] * table
        return values

    def perform(self, ops: tuple[Op, ...], path: str, values: list[Any]) -> None:
        for k, op in enumerate(ops):
            places = matrices(values)
            if places and self.now >= op.since:
                OPS[op.name](Call(self, op, f"{path}{k}", values, places[op.at % len(places)]))


class SkipStage(Stage):
    """One that stashes and pops: a generator, as weft.pipe.skip wants it."""

    def forward(self, *arguments: Any) -> Any:
        values = self.unpacked(arguments)
        for k, op in enumerate(self.ops):
            place = matrices(values)[op.at % len(matrices(values))]
            if op.name == "stash":
                yield stash(op.arg, values[place] if self.now >= op.since else None)
            elif op.name == "pop":
                skip = yield pop(op.arg)
                if skip is not None and self.now >= op.since:
                    values.append(skip)
            elif self.now >= op.since:
                OPS[op.name](Call(self, op, f"op{k}", values, place))
        return values[0] if len(values) == 1 else tuple(values)


def matrices(values: list[Any]) -> list[int]:
    """The places of what operations work on."""
    return [
        k
        for k, value in enumerate(values)
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 2
    ]


def make_stage(ops: tuple[Op, ...], shared: dict[str, nn.Parameter]) -> nn.Module:
    stashed = [op.arg for op in ops if op.name == "stash"]
    popped = [op.arg for op in ops if op.name == "pop"]
    if not stashed and not popped:
        return Stage(ops, shared)
    return skippable(stash=stashed, pop=popped)(SkipStage)(ops, shared)


def make_stages(stages: tuple[tuple[Op, ...], ...], dtype: torch.dtype) -> list[nn.Module]:
    """The same model whenever the generator is in the same state."""
    names = sorted({op.arg for ops in stages for _, op in walk(ops) if op.name in PARTS and op.arg})
    shared = {name: nn.Parameter(torch.randn(WIDTH, WIDTH) / 2) for name in names}
    return [make_stage(ops, shared).to(dtype) for ops in stages]


def stages_in(model: nn.Module) -> list[Stage]:
    return [module for module in model.modules() if isinstance(module, Stage)]


# What operations are made of.


class Call:
    """One operation at work."""

    def __init__(self, stage: Stage, op: Op, path: str, values: list[Any], place: int) -> None:
        self.stage, self.op, self.path, self.values, self.place = stage, op, path, values, place

    @property
    def x(self) -> Tensor:
        return self.values[self.place]

    @property
    def part(self) -> nn.Module:
        return self.stage.parts[self.path]

    def inside(self, x: Tensor) -> Tensor:
        """The operations inside this one."""
        values: list[Any] = [x]
        self.stage.perform(self.op.inner, f"{self.path}_", values)
        return values[0]


OPS: dict[str, Callable[[Call], None]] = {}
#: Operations with a module of their own.
PARTS: dict[str, Callable[[], nn.Module]] = {}


def op(function: Callable) -> Callable:
    """An operation that does something to the list of values."""
    OPS[function.__name__] = function
    return function


def on_one(function: Callable[[Call, Tensor], Tensor]) -> Callable:
    """An operation that puts another matrix in the place of one."""

    @functools.wraps(function)
    def run(call: Call) -> None:
        call.values[call.place] = function(call, call.x)

    return op(run)


def has_part(make: Callable[[], nn.Module]) -> Callable:
    def register(function: Callable) -> Callable:
        PARTS[function.__name__] = make
        return function

    return register


# Layers.


class Scaled(nn.Module):
    """A parametrization with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.25))

    def forward(self, weight: Tensor) -> Tensor:
        return (weight * self.scale).tanh()


def parametrized_linear() -> nn.Module:
    return parametrize.register_parametrization(nn.Linear(WIDTH, WIDTH), "weight", Scaled())


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))


@on_one
@has_part(lambda: nn.Linear(WIDTH, WIDTH))
def linear(call: Call, x: Tensor) -> Tensor:
    return call.part(x)


@on_one
@has_part(lambda: nn.LazyLinear(WIDTH))
def lazy(call: Call, x: Tensor) -> Tensor:
    return call.part(x)


@on_one
@has_part(lambda: nn.LayerNorm(WIDTH))
def layer_norm(call: Call, x: Tensor) -> Tensor:
    return call.part(x)


@on_one
@has_part(lambda: nn.BatchNorm1d(WIDTH))
def batch_norm(call: Call, x: Tensor) -> Tensor:
    # Of one row there is no variance.
    return call.part(torch.cat((x, x * 0.5 + 1)))[: len(x)]


@on_one
@has_part(parametrized_linear)
def parametrized(call: Call, x: Tensor) -> Tensor:
    return call.part(x)


@on_one
@has_part(Counter)
def count(call: Call, x: Tensor) -> Tensor:
    if not weft.pipe.is_recomputing():
        call.part.seen.add_(len(x))
    return x


@on_one
@has_part(lambda: nn.Embedding(WIDTH, WIDTH, sparse=True))
def embedding(call: Call, x: Tensor) -> Tensor:
    # Signs are tokens too: an integer from each element.
    return x + call.part((x.detach() > 0).long()).sum(1)


@on_one
@has_part(lambda: nn.Linear(WIDTH, WIDTH))
def functional_linear(call: Call, x: Tensor) -> Tensor:
    weights = {"weight": call.part.weight * 0.5, "bias": call.part.bias + 1}
    return torch.func.functional_call(call.part, weights, (x,))


class InnerPipe(nn.ModuleList):
    """Layers that random_programs.build makes a Pipe of, inside a stage."""

    def __init__(self) -> None:
        super().__init__([nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.Tanh()])


@on_one
@has_part(InnerPipe)
def inner_pipe(call: Call, x: Tensor) -> Tensor:
    y = call.part(x)
    return y.local_value() if hasattr(y, "local_value") else y


class Unregistered(nn.Module):
    """Has a leaf that nobody can find."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [torch.full((WIDTH,), 1.5, requires_grad=True)]


@on_one
@has_part(Unregistered)
def unregistered(call: Call, x: Tensor) -> Tensor:
    return x * call.part.hidden[0].to(x.dtype)


@on_one
def tanh(call: Call, x: Tensor) -> Tensor:
    return x.tanh()


@on_one
def square(call: Call, x: Tensor) -> Tensor:
    return Square.apply(x)


class Square(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * 0.5

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad

    @staticmethod
    def jvp(ctx, tangent):
        return ctx.saved_tensors[0] * tangent


# In place.


@on_one
def relu_(call: Call, x: Tensor) -> Tensor:
    return x.relu_()


@on_one
def add_(call: Call, x: Tensor) -> Tensor:
    return x.add_(0.5)


@on_one
def half_(call: Call, x: Tensor) -> Tensor:
    x[:, : WIDTH // 2].mul_(1.5)
    return x


@on_one
def dirty_(call: Call, x: Tensor) -> Tensor:
    return Doubled.apply(x)


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


# Random numbers.


@on_one
def dropout(call: Call, x: Tensor) -> Tensor:
    return functional.dropout(x, 0.4, call.stage.training)


@on_one
def annealed(call: Call, x: Tensor) -> Tensor:
    """Calls dropout from the beginning, with a probability that grows from 0."""
    return functional.dropout(x, min(0.3 * call.stage.now, 0.6), call.stage.training)


@on_one
def noise(call: Call, x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


@on_one
def forked(call: Call, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(call.place)
        return x * torch.rand_like(x)


# Around other operations.


@on_one
def checkpointed(call: Call, x: Tensor) -> Tensor:
    return checkpoint(call.inside, x, use_reentrant=False)


@on_one
def checkpointed_reentrant(call: Call, x: Tensor) -> Tensor:
    return checkpoint(call.inside, x, use_reentrant=True)


@on_one
def autocast(call: Call, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return call.inside(x).to(x.dtype)


@on_one
def no_autocast(call: Call, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return call.inside(x.to(torch.get_default_dtype()) if x.dtype == torch.bfloat16 else x)


@on_one
def no_grad(call: Call, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = call.inside(x.clone())
    return x + y


@on_one
def saved_hooks(call: Call, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        return call.inside(x)


@on_one
def energy_gradient(call: Call, x: Tensor) -> Tensor:
    """A gradient inside a stage, which has gradients itself."""
    with torch.enable_grad():
        y = x * 1 if x.requires_grad else x.detach().requires_grad_()
        energy = call.inside(y * y).sum()
        (slope,) = torch.autograd.grad(energy, y, create_graph=True)
    return x + 0.5 * slope


@on_one
def func_grad(call: Call, x: Tensor) -> Tensor:
    return x + 0.5 * torch.func.grad(lambda t: call.inside(t * t).sum())(x)


@on_one
def func_vmap(call: Call, x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: call.inside(row.unsqueeze(0)).squeeze(0))(x)


@on_one
def func_jvp(call: Call, x: Tensor) -> Tensor:
    return torch.func.jvp(lambda t: call.inside(t * 1), (x,), (torch.ones_like(x),))[1] + x


@on_one
def dual_inside(call: Call, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x * 1, torch.ones_like(x))
        primal, tangent = forward_ad.unpack_dual(call.inside(dual))
    return primal if tangent is None else primal + tangent


@on_one
def tensor_hook(call: Call, x: Tensor) -> Tensor:
    y = x * 1
    if y.requires_grad:
        y.register_hook(lambda grad: 2 * grad)
    return y


# On the list of values.


@op
def same_twice(call: Call) -> None:
    call.values.append(call.x)


@op
def view(call: Call) -> None:
    call.values.append(call.x.view_as(call.x))


@op
def transposed_view(call: Call) -> None:
    call.values[call.place] = call.x.t().t()


@op
def detached(call: Call) -> None:
    call.values.append(call.x.detach())


@op
def detached_copy(call: Call) -> None:
    call.values.append(call.x.detach() * 2)


@op
def not_differentiable(call: Call) -> None:
    call.values[call.place : call.place + 1] = WithoutGradient.apply(call.x)


class WithoutGradient(Function):
    """A result, and a second one of floating numbers that has no gradient."""

    @staticmethod
    def forward(ctx, x):
        second = x * 2
        ctx.mark_non_differentiable(second)
        return x * 3, second

    @staticmethod
    def backward(ctx, grad, _):
        return grad * 3


@op
def turned(call: Call) -> None:
    call.values.append(call.values.pop(0))


@op
def merged(call: Call) -> None:
    places = matrices(call.values)
    other = places[(call.op.at + 1) % len(places)]
    if other != call.place:
        call.values[call.place] = call.x * 0.5 + call.values[other]
        del call.values[other]


@op
def dropped(call: Call) -> None:
    if len(matrices(call.values)) > 1:
        del call.values[call.place]


@op
def word(call: Call) -> None:
    call.values.append("word")


@op
def nothing(call: Call) -> None:
    call.values.append(None)


@op
def integers(call: Call) -> None:
    call.values.append(torch.arange(len(call.x)))


@op
def in_a_dictionary(call: Call) -> None:
    if call.stage.ops[-1] is call.op:  # the next stage takes it out
        call.values[call.place] = {"inner": call.x, "word": "word"}


@op
def stashed_in_between(call: Call) -> None:
    """Stands for stash and pop, which SkipStage does itself."""


OPS["stash"] = OPS["pop"] = OPS.pop("stashed_in_between")
