"""Docstrings of ``torch.ops.weft``: C++ registrations have no place for them."""

from __future__ import annotations

import torch
import torch.fx
from torch._library.effects import EffectType

_TARGET = (
    "method: forward unless named. version: 0 is the newest. "
    "timeout: seconds, negative for the group's."
)

_ASYNC = (
    "As {0}, but returns a Future at once (torch.jit.wait). No gradients: a tensor that needs them is "
    "refused."
)

_GROUP = (
    "group: its group_name, e.g. torch.distributed.group.WORLD.group_name. All of its ranks call it, in the "
    "same order; in backward as well."
)

# Other workers and ranks feel whether these run, also when nobody uses the result, and in which order: ranks
# that compile different graphs must still meet in the same collective.
_WITH_EFFECTS = (
    *("call_tensors", "_call_tensors_recorded", "_call_tensors_backward"),
    *("send", "recv", "all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier"),
)

DOCS = {
    "call": "Calls what `worker` publishes as `name` and waits. In TorchScript `like`, an annotated "
    "empty list, says the type of the result; without it the result is Any. names: the last of "
    f"`args` are keyword arguments of these names. {_TARGET}",
    "call_async": f"As call, but returns a Future of the result at once. {_TARGET}",
    "remote": f"As call, but the result stays at `worker`, and an RRef to it comes back. {_TARGET}",
    "fetch": "The value of an RRef, from its owner.",
    "fetch_async": "A Future of the value of an RRef.",
    "drop": "Lets go of an RRef's value now; it can't be fetched here any more.",
    "owner": "The name of the worker that owns an RRef's value.",
    "call_tensors": "A call that takes and gives tensors, for torch.compile and torch.export: the "
    "result has the shapes and dtypes of `like`, or the call fails. Gradients go through it by "
    "distributed autograd. "
    f"{_TARGET}",
    "_call_tensors_recorded": "What call_tensors is in a graph with gradients: its results and the number "
    "of the way back. Not for use by hand.",
    "_call_tensors_backward": "What its backward is: gradients of the results to those of the arguments, "
    "through distributed autograd. Not for use by hand.",
    "in_group": "Whether this process is in an RPC group.",
    "worker_name": "This worker's name.",
    "rank": "A worker's rank; this worker's without a name.",
    "workers": "The names of the group's workers, by rank.",
    "loss_of": "Why a worker is lost; empty while it is not.",
    "deadline": "How many seconds the caller still waits for the function that runs here, 0 when the time is "
    "up; None outside of calls and in one without a timeout.",
    "cancelled": "Whether nobody waits any more for the answer of the function that runs here; False outside "
    "of calls.",
    "send": "Sends a tensor to rank `dst` of the process group named `group` and waits until it has left; "
    f"no gradients. {_GROUP}",
    "recv": "A tensor like `like`, received from rank `src`. Messages of one sender and tag come in "
    f"order. {_GROUP}",
    "all_reduce": "The reduction of all ranks' tensors, as a new tensor. op: sum, avg, product, min, max, "
    f"band, bor, bxor; gradients go through sum and avg. {_GROUP}",
    "broadcast": "The tensor of rank `src`, which has the shape and dtype of `x` everywhere. "
    f"{_GROUP}",
    "reduce": f"As all_reduce, for rank `dst`; the others get zeros. {_GROUP}",
    "gather": "All ranks' tensors, one behind the other along a new first dimension, at rank `dst`; the "
    f"others get no rows. {_GROUP}",
    "scatter": "This rank's row of what rank `src` gives; the others give no rows: torch.empty(0, ...), "
    f"which says what a row is like. {_GROUP}",
    "barrier": f"Waits until all ranks of the group have come here. {_GROUP}",
    "group_rank": "This process's rank in a process group.",
    "group_size": "How many ranks a process group has.",
    "published": "What a worker publishes, or this process: a line `name@version signature` for each method.",
}

for _name in ("send", "recv", "all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier"):
    DOCS[f"{_name}_async"] = f"{_ASYNC.format(_name)} {_GROUP}"


def install() -> None:
    """Gives each operator its ``__doc__``; keeps compilers from dropping or reordering those with effects."""
    for name, text in DOCS.items():
        getattr(torch.ops.weft, name).__doc__ = text
    for name in _WITH_EFFECTS:
        operator = getattr(torch.ops.weft, name).default
        torch.fx.node.has_side_effect(operator)
        torch.library._register_effectful_op(operator, EffectType.ORDERED)
