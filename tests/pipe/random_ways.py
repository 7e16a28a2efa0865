"""The ways to take derivatives that random programs use."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from random_models import Unregistered
from random_programs import AROUND, Plain, Run
from threads import in_threads
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

WAYS: dict[str, Callable[[Run], None]] = {}


def way(function: Callable[[Run], None]) -> Callable[[Run], None]:
    WAYS[function.__name__] = function
    return function


@way
def backward(run: Run) -> None:
    loss = run.loss(run.output())
    if loss.requires_grad:
        loss.backward()


@way
def forward_only(run: Run) -> None:
    run.output()


@way
def twice(run: Run) -> None:
    loss = run.loss(run.output())
    if loss.requires_grad:
        loss.backward(retain_graph=True)
        loss.backward()


@way
def one_output_after_the_other(run: Run) -> None:
    outputs = run.output()
    rest = run.loss(outputs, 1) if len(run.used(outputs)) > 1 else None
    first = run.loss([run.used(outputs)[0]])
    both = [loss for loss in (first, rest) if loss is not None and loss.requires_grad]
    for k, loss in enumerate(both):
        loss.backward(retain_graph=k + 1 < len(both))


@way
def other_thread(run: Run) -> None:
    loss = run.loss(run.output())
    if loss.requires_grad:
        in_threads(loss.backward)


@way
def interleaved(run: Run) -> None:
    """Two mini-batches on their way; the later one's backward is first."""
    losses = [run.loss(run.output()) for _ in range(2)]
    for loss in reversed(losses):
        if loss.requires_grad:
            loss.backward()


@way
def two_threads(run: Run) -> None:
    """Each with a mini-batch of its own, at the same time."""
    batches = [run.inputs() for _ in range(2)]

    def one(inputs: list[Any]) -> None:
        loss = run.loss(tree_leaves(run.call(*inputs)))
        if loss.requires_grad:
            loss.backward()

    # Modules alone are not for two threads, what is around both is this thread's only, and anomaly
    # mode is the whole process's: whoever leaves it last restores what the other one had set.
    around = any(name.endswith("_all") or name == "anomaly" for name in run.step.around)
    if around or isinstance(run.model.parts[0], Plain):
        for inputs in batches:
            one(inputs)
    else:
        in_threads(*(lambda inputs=inputs: one(inputs) for inputs in batches))


def note(run: Run, what: str, values: Iterable[Any]) -> None:
    for k, value in enumerate(values):
        run.results[f"{what} {k}"] = value


@way
def autograd_grad(run: Run) -> None:
    loss = run.loss(run.output())
    wanted = (run.leaves + run.wanted)[::2]
    if loss.requires_grad and wanted:
        note(run, "gradient", torch.autograd.grad(loss, wanted, allow_unused=True))


@way
def double_backward(run: Run) -> None:
    loss = run.loss(run.output())
    wanted = run.leaves + run.wanted
    if not loss.requires_grad or not wanted:
        return
    slopes = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
    note(run, "slope", [slope if slope is None else slope.detach().clone() for slope in slopes])
    penalty = sum(
        slope.to_dense().square().sum()
        for slope in slopes
        if slope is not None and slope.requires_grad
    )
    if isinstance(penalty, Tensor):
        penalty.backward()


@way
def double_backward_of_inputs(run: Run) -> None:
    loss = run.loss(run.output())
    if not loss.requires_grad or not run.leaves:
        return
    slopes = torch.autograd.grad(loss, run.leaves, create_graph=True, allow_unused=True)
    penalty = sum(s.square().sum() for s in slopes if s is not None and s.requires_grad)
    # Where torch adds both in bfloat16, the sum depends on the order.
    whole = loss + penalty if run.program.double else penalty
    if isinstance(whole, Tensor):
        whole.backward()


@way
def batched_gradients(run: Run) -> None:
    loss = run.loss(run.output())
    wanted = run.leaves + run.wanted
    if loss.requires_grad and wanted:
        weights = torch.tensor([0.5, 2.0], dtype=loss.dtype)
        found = torch.autograd.grad(loss, wanted, weights, allow_unused=True, is_grads_batched=True)
        note(run, "batched gradient", found)


@way
def functional_call(run: Run) -> None:
    """With other tensors for the parameters, which get the gradients."""
    others = {
        name: (p.detach() * 0.9).requires_grad_(p.requires_grad)
        for name, p in run.model.named_parameters()
    }
    loss = run.loss(run.output(model=lambda *x: torch.func.functional_call(run.model, others, x)))
    if loss.requires_grad:
        loss.backward()
    note(run, "gradient of a given parameter", [p.grad for p in others.values()])


@way
def maml(run: Run) -> None:
    """A step, and the gradient of what is reached by it."""
    names = dict(run.model.named_parameters())
    inner = run.loss(run.output())
    if not inner.requires_grad:
        return
    wanted = {name: p for name, p in names.items() if p.requires_grad}
    if not wanted:
        return
    grads = torch.autograd.grad(inner, list(wanted.values()), create_graph=True, allow_unused=True)
    stepped = dict(names)
    for (name, p), grad in zip(wanted.items(), grads, strict=True):
        stepped[name] = p if grad is None else p - 0.05 * grad.to_dense()
    outer = run.loss(run.output(model=lambda *x: torch.func.functional_call(run.model, stepped, x)))
    if outer.requires_grad:
        outer.backward()


@way
def func_grad_of_parameters(run: Run) -> None:
    inputs = run.inputs()
    names = {name: p.detach() for name, p in run.model.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        call = lambda *x: torch.func.functional_call(run.model, values, x)  # noqa: E731
        return run.loss(tree_leaves(run.call(*inputs, model=call)))

    if names:
        note(run, "func gradient", torch.func.grad(loss)(names).values())


def first_alone(run: Run) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The first input, and the loss as a function of it."""
    x, *rest = run.inputs()
    return x, lambda value: run.loss(tree_leaves(run.call(value, *rest)))


@way
def func_grad_of_inputs(run: Run) -> None:
    x, loss = first_alone(run)
    note(run, "func gradient", [torch.func.grad(loss)(x.detach())])


@way
def func_jvp(run: Run) -> None:
    x, loss = first_alone(run)
    note(run, "jvp", torch.func.jvp(loss, (x.detach(),), (torch.ones_like(x),)))


@way
def func_vmap(run: Run) -> None:
    x, loss = first_alone(run)
    note(run, "vmap", [torch.func.vmap(loss)(torch.stack((x.detach(), 2 * x.detach())))])


@way
def dual_inputs(run: Run) -> None:
    x, loss = first_alone(run)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach().clone(), torch.ones_like(x))
        note(run, "dual", forward_ad.unpack_dual(loss(dual)))


@way
def dual_parameters(run: Run) -> None:
    inputs = run.inputs()
    with forward_ad.dual_level():
        duals = {
            name: forward_ad.make_dual(p.detach(), torch.ones_like(p))
            for name, p in run.model.named_parameters()
        }
        call = lambda *x: torch.func.functional_call(run.model, duals, x)  # noqa: E731
        loss = run.loss(tree_leaves(run.call(*inputs, model=call)))
        note(run, "dual", forward_ad.unpack_dual(loss))


@way
def reverse_over_reverse_jvp(run: Run) -> None:
    x, loss = first_alone(run)
    note(run, "jvp", torch.autograd.functional.jvp(loss, x.detach().clone(), torch.ones_like(x)))


@way
def parameter_changed_before_backward(run: Run) -> None:
    loss = run.loss(run.output())
    with torch.no_grad():
        for parameter in run.parameters:
            parameter.mul_(1.5)
    try:
        if loss.requires_grad:
            loss.backward()
    finally:
        with torch.no_grad():
            for parameter in run.parameters:
                parameter.div_(1.5)


@way
def input_changed_before_backward(run: Run) -> None:
    inputs = run.inputs()
    loss = run.loss(run.output(*inputs))
    with torch.no_grad():
        inputs[0].mul_(1.5)
    if loss.requires_grad:
        loss.backward()


@way
def output_changed_before_backward(run: Run) -> None:
    outputs = run.output()
    used = run.used(outputs)
    k = next(k for k, x in enumerate(outputs) if x is used[0])
    outputs[k] = used[0].mul_(1.5)
    loss = run.loss(outputs)
    if loss.requires_grad:
        loss.backward()


#: What torch's transforms are around, and what torch cannot transform.
TRANSFORMS = tuple(name for name in WAYS if name.startswith(("func_", "dual_")))
NOT_TRANSFORMED = {
    "dirty_",
    "not_differentiable",
    "saved_hooks",
    "checkpointed_reentrant",
    "dual_inside",
}

#: Those that have gradients of gradients.
SECOND_ORDER = (
    "double_backward",
    "double_backward_of_inputs",
    "maml",
    "reverse_over_reverse_jvp",
)

#: Where torch itself raises, a Pipe has to do so as well.
AS_STRICT_AS_TORCH = ("parameter_changed_before_backward", "input_changed_before_backward")


def perform(run: Run) -> None:
    """The mini-batch, with what is around all of it."""
    with contextlib.ExitStack() as stack:
        for name in run.step.around:
            if name.endswith("_all"):
                stack.enter_context(AROUND[name.removesuffix("_all")]())
        WAYS[run.step.way](run)
    for k, leaf in enumerate(run.leaves):
        run.results[f"gradient of input {k}"] = leaf.grad
    for name, parameter in run.model.named_parameters():
        # A Pipe's partition j has the one layer 0.
        name = re.sub(r"partitions\.(\d+)\.0\.", r"stages.\1.", name)
        grad = parameter.grad
        run.results[f"gradient of {name}"] = grad if grad is None else grad.clone()
    hidden = [m for m in run.model.modules() if isinstance(m, Unregistered)]
    note(run, "gradient of unregistered", [module.hidden[0].grad for module in hidden])
    for k, buffer in enumerate(run.model.buffers()):
        run.results[f"buffer {k}"] = buffer.clone()
    run.results["random numbers"] = torch.get_rng_state()
