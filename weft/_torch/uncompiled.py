"""Keeps torch.compile out of functions that call workers: each of them is one graph break."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

F = TypeVar("F", bound=Callable[..., object])


def uncompiled(function: F) -> F:
    """As ``torch.compiler.disable``, which imports torch._dynamo and wraps the function.

    Without torch's private parts that this needs, Dynamo traces what the function calls, and warns.
    """
    marked: Any = function
    with contextlib.suppress(AttributeError, TypeError):
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)  # also for the frames that it calls
        eval_frame.set_code_exec_strategy(marked.__code__, strategy)
        marked._torchdynamo_disable = True  # where Dynamo would trace a call of it
        marked._torchdynamo_disable_msg = "it calls another worker"
    return function
