"""Programs around random models, and the two sides that run them: weft.Pipe, and Plain without one.

A program is a model (random_models.py), how it is piped, and some mini-batches in a row, each with a
way to take derivatives (random_ways.py) and what is around the call (AROUND). Plain runs the same
stages as docs/guide/pipe.md promises that a Pipe does: micro-batch by micro-batch in the order of the
schedule, in autograd's ordinary graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.utils.parametrize as parametrize
from pipe_models import make_pipe
from random_models import WIDTH, InnerPipe, Op, make_stages, stages_in
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from weft.pipe import DeferredBatchNorm, NoChunk
from weft.pipe.skip._store import use_store


class Data:
    """Shown with the fields that are not what they are by default, as source text."""

    def __repr__(self) -> str:
        fields = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(fields)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Step(Data):
    """One mini-batch."""

    rows: int = 4
    training: bool = True
    #: How derivatives are taken.
    way: str = "backward"
    around: tuple[str, ...] = ()
    #: "leaf" and "inner" require a gradient, "data" does not.
    input: str = "leaf"
    #: Which of the outputs, by bits, the loss leaves out.
    unused: int = 0
    #: The parameter that is frozen, counted around.
    frozen: int | None = None
    #: Afterwards parameters are changed by their gradients.
    update: bool = False


@dataclasses.dataclass(frozen=True, repr=False)
class Program(Data):
    stages: tuple[tuple[Op, ...], ...]
    steps: tuple[Step, ...] = (Step(),)
    chunks: int = 2
    mode: str = "never"
    threading: str = "threads"
    #: Where another Pipe begins.
    cut: int | None = None
    deferred: bool = False
    #: A second input: "leaf", "data", "same" (the first once more), "no_chunk", "no_chunk_leaf".
    second: str | None = None
    #: Of parameters, layers and outputs, each with the number of what it is on.
    hooks: tuple[tuple[str, int], ...] = ()
    double: bool = True
    seed: int = 0


# What runs.


def outside_inference(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Of tensors that were not made in inference mode there is one of their kind, with its tangent."""
    if not torch.is_inference_mode_enabled() or any(tensor.is_inference() for tensor in tensors):
        return function(*tensors)
    with torch.inference_mode(False), torch.no_grad():
        return function(*tensors)


def copy_of(tensor: Tensor) -> Tensor:
    return outside_inference(Tensor.clone, tensor)


def joined_tensor(pieces: Iterable[Tensor]) -> Tensor:
    return outside_inference(lambda *tensors: torch.cat(tensors), *pieces)


def clock_order(micro_batches: int, stages: int) -> Iterator[tuple[int, int]]:
    for clock in range(micro_batches + stages - 1):
        for j in range(stages):
            if 0 <= clock - j < micro_batches:
                yield clock - j, j


class Plain(nn.Module):
    """What a Pipe is to compute, without one."""

    def __init__(self, stages: list[nn.Module], chunks: int) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.chunks = chunks

    def forward(self, *inputs: Any) -> Any:
        pieces = self.split(inputs)
        for layer in self.modules():
            if isinstance(layer, DeferredBatchNorm):
                # Forgets a mini-batch that failed, which it does by itself inside a Pipe only.
                layer._defer(len(pieces), layer.biased, layer._dimensions)
        skips: list[dict] = [{} for _ in pieces]
        results = list(pieces)
        with no_autocast_cache():
            for i, j in clock_order(len(pieces), len(self.stages)):
                with use_store(skips[i]):
                    results[i] = self.stages[j](*pieces[i])
                value = results[i]
                pieces[i] = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        return self.join(results)

    def split(self, inputs: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        # A stage may change what it gets in place, but not the caller's tensor; the same one given
        # twice is the same in the stage.
        split: dict[int, tuple[Tensor, ...]] = {}
        count = 1
        for value in inputs:
            if isinstance(value, Tensor):
                split[id(value)] = tuple(map(copy_of, value.chunk(self.chunks)))
                count = len(split[id(value)])
        whole = [value.tensor if isinstance(value, NoChunk) else value for value in inputs]
        return [
            tuple(split[id(value)][i] if id(value) in split else value for value in whole)
            for i in range(count)
        ]

    def join(self, results: list[Any]) -> Any:
        if isinstance(results[0], (tuple, list)):
            return tuple(self.joined(list(zip(*results, strict=True))))
        if isinstance(results[0], dict):
            parts = self.joined([[r[key] for r in results] for key in results[0]])
            return dict(zip(results[0], parts, strict=True))
        return self.joined([results])[0]

    def joined(self, columns: list[Any]) -> list[Any]:
        """Per output, what the micro-batches gave; outputs that were one tensor stay one."""
        known: dict[tuple[int, ...], Tensor] = {}
        outputs = []
        for column in columns:
            if isinstance(column[0], Tensor):
                same = tuple(map(id, column))
                if same not in known:
                    known[same] = joined_tensor(column) if len(column) > 1 else column[0]
                outputs.append(known[same])
            else:
                outputs.append(list(column))
        return outputs


class Chain(nn.Module):
    """One Pipe after the other; tensors go on."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *values: Any) -> Any:
        for part in self.parts:
            value = part(*values)
            value = value.local_value() if hasattr(value, "local_value") else value
            several = isinstance(value, (tuple, list))
            values = tuple(v for v in value if isinstance(v, Tensor)) if several else (value,)
        return value


def build(program: Program, piped: bool) -> Chain:
    torch.manual_seed(program.seed)
    dtype = torch.float64 if program.double else torch.float32
    stages = make_stages(program.stages, dtype)
    for stage in stages_in(nn.ModuleList(stages)):
        for name, part in stage.parts.items():
            if isinstance(part, InnerPipe):
                stage.parts[name] = one_part(program, list(part), piped)
    cut = program.cut or len(stages)
    return Chain(
        one_part(program, layers, piped) for layers in (stages[:cut], stages[cut:]) if layers
    )


def one_part(program: Program, layers: list[nn.Module], piped: bool) -> nn.Module:
    if piped:
        return make_pipe(
            nn.Sequential(*layers),
            program.threading,
            chunks=program.chunks,
            checkpoint=program.mode,
            deferred_batch_norm=program.deferred,
        )
    if program.deferred:
        layers = [DeferredBatchNorm.convert_deferred_batch_norm(x, 1) for x in layers]
    return Plain(layers, program.chunks)


@contextlib.contextmanager
def no_autocast_cache() -> Iterator[None]:
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


# What is around the call.


class HalvesTanh(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 0.5 if function is Tensor.tanh else result


AROUND: dict[str, Callable[[], contextlib.AbstractContextManager]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "saved_hooks": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.clone(), lambda t: t
    ),
    "function_mode": HalvesTanh,
    "cached": parametrize.cached,
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
    "checkpoint": contextlib.nullcontext,
    "checkpoint_reentrant": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
#: Those that may as well be around the backward: named "…_all".
ALL_AROUND = ("autocast", "saved_hooks", "function_mode", "cached")


class Run:
    """One side's mini-batch."""

    def __init__(self, program: Program, step: Step, number: int, model: Chain) -> None:
        self.program, self.step, self.number, self.model = program, step, number, model
        self.results: dict[str, Any] = {}
        self.leaves: list[Tensor] = []
        self.calls = 0

    @property
    def parameters(self) -> list[nn.Parameter]:
        return made(self.model)

    @property
    def wanted(self) -> list[nn.Parameter]:
        return [p for p in self.parameters if p.requires_grad]

    def inputs(self) -> list[Any]:
        """The mini-batch; every call gives another."""
        self.calls += 1
        dtype = torch.float64 if self.program.double else torch.float32
        generator = torch.Generator().manual_seed(1000 * self.number + self.calls)

        def make(kind: str, *shape: int) -> Tensor:
            x = torch.randn(*shape, generator=generator, dtype=dtype)
            if kind == "data":
                return x
            x.requires_grad_()
            self.leaves.append(x)
            return x * 1 if kind == "inner" else x

        inputs: list[Any] = [make(self.step.input, self.step.rows, WIDTH)]
        second = self.program.second
        if second == "same":
            inputs.append(inputs[0])
        elif second in ("no_chunk", "no_chunk_leaf"):
            inputs.append(NoChunk(make("data" if second == "no_chunk" else "leaf", WIDTH)))
        elif second is not None:
            inputs.append(make(second, self.step.rows, WIDTH))
        return inputs

    def call(self, *inputs: Any, model: Callable | None = None) -> Any:
        model = model or self.model
        with contextlib.ExitStack() as stack:
            for name in self.step.around:
                if name in AROUND:
                    stack.enter_context(AROUND[name]())
            if "checkpoint" in self.step.around:
                output = checkpoint(model, *inputs, use_reentrant=False)
            elif "checkpoint_reentrant" in self.step.around:
                # It takes no NoChunk's gradient, and gives tensors one by one.
                output = checkpoint(model, *inputs, use_reentrant=True)
            else:
                output = model(*inputs)
        return output

    def output(self, *inputs: Any, model: Callable | None = None) -> list[Any]:
        """Calls the model; what it gave, flat."""
        outputs = tree_leaves(self.call(*(inputs or self.inputs()), model=model))
        for k, value in enumerate(outputs):
            self.results[f"output {self.calls}.{k}"] = (
                value.clone() if isinstance(value, Tensor) else value
            )
            if isinstance(value, Tensor) and not value.requires_grad:
                self.results[f"output {self.calls}.{k} needs no gradient"] = True
        for name, k in self.program.hooks:
            hooked = one(self.used(outputs), k)
            # Of one micro-batch, two outputs may be one tensor, or one a view of the other.
            joined = min(self.program.chunks, self.step.rows) > 1
            joined = joined and hooked.shape[:1] == (self.step.rows,)
            if name == "output" and joined and hooked.requires_grad:
                # An output of several whose gradient is not there is None, as with torch's own.
                hooked.register_hook(lambda grad: grad if grad is None else 2 * grad)
        return outputs

    def used(self, outputs: list[Any]) -> list[Tensor]:
        floats = [x for x in outputs if isinstance(x, Tensor) and x.is_floating_point()]
        kept = [x for k, x in enumerate(floats) if not self.step.unused >> k & 1]
        return kept or floats

    def loss(self, outputs: list[Any], first: int = 0) -> Tensor:
        losses = []
        for k, x in enumerate(self.used(outputs)[first:]):
            x = x if x.dtype == torch.float64 else x.float()
            weights = torch.linspace(1 + k, 2, x.numel(), dtype=x.dtype).cos().view_as(x)
            losses.append((x * weights).sum())
        return sum(losses)


# Hooks of the model.

HOOKS: dict[str, Callable[[nn.Module, int], None]] = {
    # docs/guide/pipe.md: it is called as well where there is no gradient.
    "parameter": lambda model, k: one(made(model), k).register_hook(
        lambda grad: grad if grad is None else 2 * grad
    ),
    "accumulated": lambda model, k: one(made(model), k).register_post_accumulate_grad_hook(
        double_gradient
    ),
    "forward": lambda model, k: one(layers(model), k).register_forward_hook(
        lambda layer, given, result: result * 1.5
    ),
    "forward_pre": lambda model, k: one(layers(model), k).register_forward_pre_hook(
        lambda layer, given: (given[0] * 1.5,)
    ),
    "backward": lambda model, k: one(layers(model), k).register_full_backward_hook(
        lambda layer, of_inputs, of_outputs: tuple(g if g is None else 2 * g for g in of_inputs)
    ),
    "backward_pre": lambda model, k: one(layers(model), k).register_full_backward_pre_hook(
        lambda layer, of_outputs: tuple(g if g is None else 2 * g for g in of_outputs)
    ),
    "output": lambda model, k: None,  # Run.output
}


def double_gradient(parameter: nn.Parameter) -> None:
    """Only a gradient that is new: a Pipe calls the hook in a mini-batch without one as well."""
    grad = parameter.grad
    last, version = getattr(parameter, "doubled", (None, 0))
    if grad is None or (grad is last and grad._version == version):
        return
    grad.detach().mul_(2)
    parameter.doubled = (grad, grad._version)


def made(model: nn.Module) -> list[nn.Parameter]:
    """Without those that a lazy module makes later."""
    return [p for p in model.parameters() if not isinstance(p, nn.UninitializedParameter)]


def layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if type(module) is nn.Linear]


def one(things: Iterable[Any], k: int) -> Any:
    things = list(things)
    return things[k % len(things)]


def add_hooks(program: Program, model: nn.Module) -> None:
    for name, k in program.hooks:
        if made(model) if name in ("parameter", "accumulated") else layers(model):
            HOOKS[name](model, k)
