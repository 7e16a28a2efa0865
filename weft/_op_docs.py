"""Docstrings of ``torch.ops.weft``: C++ registrations have no place for them."""

from __future__ import annotations

import torch

_TARGET = (
    "method: forward unless named. version: 0 is the newest. "
    "timeout: seconds, negative for the group's."
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
    f"result has the shapes and dtypes of `like`, or the call fails. {_TARGET}",
    "in_group": "Whether this process is in an RPC group.",
    "worker_name": "This worker's name.",
    "rank": "A worker's rank; this worker's without a name.",
    "workers": "The names of the group's workers, by rank.",
    "loss_of": "Why a worker is lost; empty while it is not.",
    "published": "What a worker publishes, or this process: a line `name@version signature` for each method.",
}


def install() -> None:
    """Gives each operator its ``__doc__``."""
    for name, text in DOCS.items():
        getattr(torch.ops.weft, name).__doc__ = text
