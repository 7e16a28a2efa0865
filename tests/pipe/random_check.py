"""Runs a random program with Pipes and without, and compares what came of it."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any

import torch
from random_draw import IN_PLACE
from random_models import Unregistered, stages_in, walk
from random_programs import Chain, Program, Run, Step, add_hooks, build, made
from random_ways import AS_STRICT_AS_TORCH, SECOND_ORDER, perform
from torch import Tensor, nn
from torch.autograd import forward_ad


@dataclasses.dataclass
class Finding:
    """What is wrong with a program's Pipe."""

    kind: str
    step: int
    text: str


@dataclasses.dataclass
class Tally:
    """What became of mini-batches."""

    equal: int = 0
    refused: int = 0  # the Pipe raised, as it may
    void: int = 0  # torch alone raises


def largest(value: Any) -> float:
    """The largest finite number in a tensor of floating numbers."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return 0.0
    dense = value.detach().to_dense()
    finite = dense[dense.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def close(found: Any, expected: Any, tolerance: float, scale: float) -> bool:
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        return type(found) is type(expected) and found == expected
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    found, expected = found.detach().to_dense(), expected.detach().to_dense()
    if not found.is_floating_point():
        return torch.equal(found, expected)
    scale = max(1.0, scale, largest(expected))
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


#: What gives a value several gradients, whose sum in bfloat16 depends on their order.
FAN_OUT = {
    "stash",
    "same_twice",
    "view",
    "detached",
    "inner_pipe",
    "func_grad",
    "func_jvp",
    "energy_gradient",
}
#: In gradients of gradients, all others do.
LINEAR = {"linear", "dropout", "autocast", "no_autocast", "word", "nothing", "integers", "turned"}


#: Of sums in bfloat16.
ROUNDED = 2e-2


def tolerance_of(program: Program) -> float:
    if program.double:
        return 1e-9
    names = {op.name for ops in program.stages for _, op in walk(ops)}
    twice = any(step.way in SECOND_ORDER for step in program.steps)
    return ROUNDED if FAN_OUT & names or (twice and names - LINEAR) else 1e-3


def differences(program: Program, found: dict, expected: dict) -> list[str]:
    lines = []
    tolerance = tolerance_of(program)
    # A gradient may be a sum of far larger terms that cancel, each of them rounded to bfloat16: what
    # one that is summed wrongly lacks shows in the programs of float64, too.
    gradients = [v for name, v in expected.items() if name.startswith(("gradient", "slope"))]
    scale = max(map(largest, gradients), default=0.0) if tolerance == ROUNDED else 0.0
    for name in expected:
        if name.endswith("needs no gradient") and program.mode != "never":
            continue  # of what is not kept, the backward finds that out
        if name not in found:
            lines.append(f"{name}: there is none")
        elif not close(found[name], expected[name], tolerance, scale):
            lines.append(f"{name}: {shown(found[name])}, expected {shown(expected[name])}")
    return lines


def shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    if value.numel() > 100:
        return f"{value.numel()} numbers that add up to {value.double().sum().item():.6g}"
    dense = value.detach().to_dense()
    return f"{str(value.dtype).removeprefix('torch.')} {[round(v, 5) for v in dense.flatten().tolist()]}"


def set_up(program: Program, step: Step, number: int, model: Chain) -> None:
    model.train(step.training)
    for stage in stages_in(model):
        stage.now = number
    for module in model.modules():
        if isinstance(module, Unregistered):
            module.hidden[0].grad = None
    parameters = list(model.parameters())
    for k, parameter in enumerate(parameters):
        if not isinstance(parameter, nn.UninitializedParameter):
            parameter.requires_grad_(step.frozen is None or k != step.frozen % len(parameters))
    torch.manual_seed(program.seed + number)


def finish(step: Step, model: Chain) -> None:
    if step.update:
        with torch.no_grad():
            for parameter in made(model):
                if parameter.grad is not None:
                    parameter.sub_(0.01 * parameter.grad.to_dense().clamp(-1, 1))
                    parameter.grad = None


def snapshot(model: Chain) -> list[Any]:
    state: list[Any] = []
    for tensor in [*model.parameters(), *model.buffers()]:
        lazy = isinstance(tensor, nn.parameter.UninitializedTensorMixin)
        grad = tensor.grad
        state.append(
            None if lazy else (tensor.detach().clone(), grad if grad is None else grad.clone())
        )
    return state


def restore(model: Chain, state: list[Any]) -> None:
    for tensor, saved in zip([*model.parameters(), *model.buffers()], state, strict=True):
        if saved is None:
            continue
        with torch.no_grad():
            tensor.copy_(saved[0])
        tensor.grad = saved[1] if saved[1] is None else saved[1].clone()


@dataclasses.dataclass
class Raised:
    """An exception without its traceback, which would keep what is on its frames."""

    kind: str
    text: str

    @property
    def line(self) -> str:
        """Its first line, without the numbers that differ from program to program."""
        return re.sub(r"[0-9]+", "#", self.text.strip().split("\n")[0][:80])


def attempt(program: Program, number: int, model: Chain) -> tuple[Run, Raised | None]:
    step = program.steps[number]
    set_up(program, step, number, model)
    run = Run(program, step, number, model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            perform(run)
    except Exception as error:
        return run, Raised(type(error).__name__, str(error))
    return run, None


def thread_state() -> dict[str, Any]:
    """What a mini-batch leaves in its thread as it was."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast's cache": torch.is_autocast_cache_enabled(),
        "saved-tensor hooks": torch._C._autograd._top_saved_tensors_default_hooks(False),
        "function modes": torch._C._len_torch_function_stack(),
        "forward-mode level": forward_ad._current_level,
        "anomaly mode": torch.is_anomaly_enabled(),
    }


def set_right() -> None:
    """Takes away what the next program is not to suffer from."""
    while torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
    torch.set_grad_enabled(True)
    torch.set_anomaly_enabled(False)


def check(
    program: Program, may_raise: Callable[[Program, int, str], str | None], tally: Tally
) -> Finding | None:
    """Runs both sides; the first mini-batch in which the Pipe is wrong.

    `may_raise` says for an error's text whether the Pipe may raise it in that mini-batch: "always",
    "once" (the mini-batch is run again, and must work), or None.
    """
    writes = any(op.name in IN_PLACE for ops in program.stages for _, op in walk(ops))
    plain, piped = build(program, False), build(program, True)
    add_hooks(program, plain)
    add_hooks(program, piped)
    for number, step in enumerate(program.steps):
        before = snapshot(piped)
        state_before = thread_state()
        expected, torch_error = attempt(program, number, plain)
        found, error = attempt(program, number, piped)
        for _ in program.stages:
            if error is None or may_raise(program, number, error.text) != "once":
                break
            restore(piped, before)
            found, error = attempt(program, number, piped)
        if thread_state() != state_before:
            left = [name for name, value in thread_state().items() if value != state_before[name]]
            set_right()
            return Finding(f"left behind: {', '.join(left)}", number, f"{error}")
        if torch_error is not None:
            strict = step.way in AS_STRICT_AS_TORCH and "inplace operation" in torch_error.text
            strict = strict and not writes  # a Pipe keeps copies of what its stages change
            if error is None and strict:
                text = f"nothing was raised; torch alone: {torch_error.text}"
                return Finding(f"silent: {step.way}", number, text)
            tally.void += 1
        elif error is not None:
            if may_raise(program, number, error.text) is None:
                return Finding(f"raised {error.kind}: {error.line}", number, error.text)
            tally.refused += 1
        else:
            lines = differences(program, found.results, expected.results)
            if lines:
                return Finding("wrong", number, "\n".join(lines))
            tally.equal += 1
        if torch_error or error:
            state = snapshot(plain)
            if None in state or None in snapshot(piped):
                return None  # a lazy module that was never made
            restore(piped, state)
        finish(step, plain)
        finish(step, piped)
    return None
