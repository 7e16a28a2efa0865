"""The names of two predecessors: torchgpipe's :class:`GPipe`, and, after :func:`install`,
``torch.distributed.pipeline.sync``, which PyTorch removed in 2.4.

::

    import weft.compat
    weft.compat.install()

    from torch.distributed.pipeline.sync import NoChunk, Pipe, WithDevice
    from torch.distributed.pipeline.sync.skip import pop, skippable, stash

The imported objects are :mod:`weft.pipe`'s own.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

import torch
import torch.distributed
from torch import nn

from weft.pipe import Pipe
from weft.pipe._inputs import check_inputs
from weft.pipe._memory import MemoryReport
from weft.pipe._whole import WholeSequential, with_mark
from weft.pipe.balance import place

__all__ = ["GPipe", "install"]

_ROOT = "torch.distributed.pipeline"


class GPipe(Pipe):
    """torchgpipe's ``GPipe``: layers counted out over devices, a tensor or a tuple out, no RPC.

    A layer gets a tuple as one argument. The layers keep their names, so that checkpoints of
    torchgpipe with the same balance can be loaded.

    ::

        from weft.compat import GPipe

        model = GPipe(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), [1, 1], devices=["cpu", "cpu"])
        loss = model(torch.ones(8, 2)).sum()

    Args:
        module: the layers.
        balance: how many layers each partition has.
        devices: where each partition runs, at least as many as partitions; by default the CUDA
            devices. The layers are moved there.
        chunks: micro-batches of a mini-batch, as for :class:`weft.Pipe`.
        checkpoint: which of them are recomputed in the backward: ``always``, ``except_last`` or
            ``never``.
        deferred_batch_norm: update running statistics once per mini-batch.

    Raises:
        TypeError: ``module`` is no ``nn.Sequential``.
        ValueError: another argument cannot be used.
        IndexError: there are fewer devices than partitions.
    """

    _gives_rref = False

    def __init__(
        self,
        module: nn.Sequential,
        balance: Sequence[int] | None = None,
        *,
        devices: Sequence[torch.device | str | int] | None = None,
        chunks: int = 1,
        checkpoint: str = "except_last",
        deferred_batch_norm: bool = False,
    ) -> None:
        if balance is None:
            raise ValueError(
                "balance is required: how many layers each partition has; "
                "weft.pipe.balance.balance_by_time proposes one"
            )
        if devices is None:
            devices = range(torch.cuda.device_count())
        if len(devices) < len(balance):
            raise IndexError(
                f"too few devices to hold given partitions (devices: {len(devices)}, partitions: "
                f"{len(balance)})"
            )
        placed = place(module, balance, list(devices)[: len(balance)])
        placed = WholeSequential(OrderedDict(placed.named_children()))
        super().__init__(placed, chunks, checkpoint, deferred_batch_norm)
        #: How many layers each partition has.
        self.balance = list(balance)
        self._plain_names = {
            f"partitions.{j}.{name}.": f"{name}."
            for j, partition in enumerate(self.partitions)
            for name, _ in partition.named_children()
        }

    def forward(self, input: Any) -> Any:  # type: ignore[override]
        """Runs a mini-batch; returns the output itself. See :meth:`weft.Pipe.forward`.

        Args:
            input: a tensor, or a tuple, which the first layer gets as one argument.
        """
        return self._run(*self._apart(input))

    def memory_report(self, input: Any) -> MemoryReport:  # type: ignore[override]
        """See :meth:`weft.Pipe.memory_report`; ``input`` as for :meth:`forward`."""
        return super().memory_report(*self._apart(input))

    def _apart(self, input: Any) -> tuple[Any, ...]:
        mark, *inputs = with_mark(input)
        # Here, because an error of the engine would show the mark.
        check_inputs(tuple(inputs), self.chunks, self.devices)
        return (mark, *inputs)


def install() -> None:
    """Adds ``torch.distributed.pipeline`` to the import system; a second call does nothing.

    A torch that still has the package keeps its own. Call this before the first such import::

        weft.compat.install()
        from torch.distributed.pipeline.sync import NoChunk, Pipe
    """
    if _ROOT in sys.modules or importlib.util.find_spec(_ROOT) is not None:
        return
    for name, content in _contents().items():
        _add(f"{_ROOT}.{name}" if name else _ROOT, content)
    sys.meta_path.append(_Absent())


def _partition_model(
    module: nn.Sequential, balance: Sequence[int], devices: Sequence[int] | None = None
) -> nn.Sequential:
    """Upstream's ``utils.partition_model``: :func:`weft.pipe.balance.place`, on device 0, 1, …"""
    return place(module, balance, range(len(balance)) if devices is None else devices)


def _contents() -> dict[str, dict[str, object]]:
    """The modules of the old package, parents first, and the public names of each."""
    from weft import pipe
    from weft.pipe import balance, skip
    from weft.pipe._batchnorm import DeferredBatchNorm
    from weft.pipe._partition import PipeSequential

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
        "sync.pipe": {**pipes, "PipeSequential": PipeSequential},
        "sync.checkpoint": flags,
        "sync.microbatch": {"NoChunk": pipe.NoChunk},
        "sync.batchnorm": {"DeferredBatchNorm": DeferredBatchNorm},
        "sync.skip": {**skippables, **spaces},
        "sync.skip.skippable": {**skippables, "Skippable": skip.Skippable},
        "sync.skip.namespace": spaces,
        "sync._balance": balances,
        "sync.utils": {"partition_model": _partition_model},
    }


class _Absent(importlib.abc.MetaPathFinder):
    """Says which modules there are when a program asks for another one, of upstream's own use."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith(f"{_ROOT}."):
            _refuse(name)


def _refuse(name: str) -> NoReturn:
    offered = ", ".join(sorted(f"{_ROOT}.{own}" for own in _contents() if own))
    raise ModuleNotFoundError(
        f"weft.compat has no {name}, which upstream's Pipe used inside; it has {offered}", name=name
    )


def _add(name: str, content: Mapping[str, object]) -> None:
    """Makes a module of these names, known to the import system and to its parent."""
    module = ModuleType(name, f"What was {name}, from weft.pipe; made by weft.compat.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__path__ = []  # a package with nothing on its path: see _Absent
    module.__all__ = sorted(content)  # type: ignore[attr-defined]
    vars(module).update(content)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    owner = torch.distributed if parent == "torch.distributed" else sys.modules[parent]
    # `sync.skip.skippable` is a module and a function; the attribute is the function, as in PyTorch.
    if last not in getattr(owner, "__all__", ()):
        setattr(owner, last, module)
