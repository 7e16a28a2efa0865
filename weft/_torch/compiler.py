"""torch's compiler, which a program may not have imported: that takes seconds."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

_NAME = "torch._inductor"


class _NotImported(types.ModuleType):
    """In the compiler's place: it has no code of its own, and is imported for all else."""

    def __getattr__(self, name: str) -> Any:
        if name == "codecache":
            raise AttributeError(name)
        return getattr(importlib.import_module(_NAME), name)


@contextlib.contextmanager
def not_imported_for_stacks() -> Iterator[None]:
    """Within it the naming of a captured stack's lines does not import the compiler.

    torch's symbolizer asks ``torch._inductor``, which torch imports when it is asked for, for the lines
    of code that it has generated. Where it is not imported, it has generated none.
    """
    if _NAME in sys.modules:
        yield
        return
    stands_in = _NotImported(_NAME)
    torch._inductor = stands_in
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is stands_in:  # no other thread has imported it meanwhile
            del torch._inductor
