"""Makes imports of ``torch.distributed.pipeline.sync`` work, which PyTorch removed in 2.4.

::

    import weft.compat
    weft.compat.install()

    from torch.distributed.pipeline.sync import NoChunk, Pipe, WithDevice
    from torch.distributed.pipeline.sync.skip import pop, skippable, stash

The imported objects are :mod:`weft.pipe`'s own.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

import torch
import torch.distributed
from torch import nn

__all__ = ["install"]

_ROOT = "torch.distributed.pipeline"


def install() -> None:
    """Adds the old package to the import system; a second call does nothing.

    A torch that has the package itself keeps it. Call it before the first such import.
    """
    if _ROOT in sys.modules or importlib.util.find_spec(_ROOT) is not None:
        return
    for name, content in _contents().items():
        _add(f"{_ROOT}.{name}" if name else _ROOT, content)


def _partition_model(
    module: nn.Sequential, balance: Sequence[int], devices: Sequence[int] | None = None
) -> nn.Sequential:
    """Upstream's ``utils.partition_model``: :func:`weft.pipe.balance.place`, on device 0, 1, …"""
    from weft.pipe.balance import place

    return place(module, balance, range(len(balance)) if devices is None else devices)


def _contents() -> dict[str, dict[str, object]]:
    """The modules of the old package, parents first, and the public names of each."""
    from weft import pipe
    from weft.pipe import balance, skip
    from weft.pipe._batchnorm import DeferredBatchNorm

    pipes = {"Pipe": pipe.Pipe, "WithDevice": pipe.WithDevice}
    flags = {
        "is_checkpointing": pipe.is_checkpointing,
        "is_recomputing": pipe.is_recomputing,
    }
    commands = {name: getattr(skip, name) for name in ("skippable", "stash", "pop")}
    skippables = {**commands, "verify_skippables": skip.verify_skippables}
    spaces = {"Namespace": skip.Namespace}
    balances = {name: getattr(balance, name) for name in ("balance_by_time", "balance_by_size")}
    return {
        "": {},
        "sync": {**pipes, **flags, "NoChunk": pipe.NoChunk},
        "sync.pipe": pipes,
        "sync.checkpoint": flags,
        "sync.microbatch": {"NoChunk": pipe.NoChunk},
        "sync.batchnorm": {"DeferredBatchNorm": DeferredBatchNorm},
        "sync.skip": {**skippables, **spaces},
        "sync.skip.skippable": {**skippables, "Skippable": skip.Skippable},
        "sync.skip.namespace": spaces,
        "sync._balance": balances,
        "sync.utils": {"partition_model": _partition_model},
    }


def _add(name: str, content: Mapping[str, object]) -> None:
    """Makes a module of these names, known to the import system and to its parent."""
    module = ModuleType(name, f"What was {name}, from weft.pipe; made by weft.compat.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    # A package with nothing on its path: other submodules are a ModuleNotFoundError.
    module.__path__ = []
    module.__all__ = sorted(content)  # type: ignore[attr-defined]
    vars(module).update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    owner = torch.distributed if parent == "torch.distributed" else sys.modules[parent]
    # `sync.skip.skippable` is a module and a function; the attribute is the function, as in PyTorch.
    if last not in _names_of(owner):
        setattr(owner, last, module)


def _names_of(module: ModuleType) -> Sequence[str]:
    """The names that a module made here offers itself."""
    return getattr(module, "__all__", ())
