"""What ``torch.utils.checkpoint`` does to the thread that it runs on: its saved-tensor hooks."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Iterator
from types import TracebackType

import torch

_autograd = torch._C._autograd


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Takes this thread's saved-tensor hooks off, those of a checkpoint and others, until it ends."""
    hooks = []
    while (pair := _autograd._top_saved_tensors_default_hooks(False)) is not None:
        _autograd._pop_saved_tensors_default_hooks()
        hooks.append(pair)
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            _autograd._push_saved_tensors_default_hooks(pack, unpack)


def end_checkpoints(error: BaseException, trace: TracebackType | None) -> None:
    """Ends the checkpoints that ``error`` has come out of, on the thread where they ran.

    Before torch 2.13 ``checkpoint`` leaves its generator (``_checkpoint_without_reentrant_generator``)
    suspended. The saved-tensor hooks that it has pushed stay on this thread until the exception's
    frames are dropped, on any thread: there the generator pops hooks that may be somebody else's.

    Args:
        error: what was raised.
        trace: its traceback.
    """
    before = error.__context__  # raised deeper, so its hooks are on top
    if before is not None:
        end_checkpoints(before, before.__traceback__)
    for frame, _ in reversed(list(traceback.walk_tb(trace))):
        if frame.f_globals.get("__name__") != "torch.utils.checkpoint":
            continue
        generator = frame.f_locals.get("gen")
        if inspect.isgenerator(generator):
            with contextlib.suppress(RuntimeError):  # its hooks are gone already
                generator.close()
