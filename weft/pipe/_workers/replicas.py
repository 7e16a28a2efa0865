"""Replicas of stages: each adds up the gradients of its micro-batches, then all add up their sums.

The sums are added in the order of the replicas, so that all have the same bits, in each run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

Sums = list[Tensor | None]

_OF_A_REPLICA = (
    "and has replicas, of which each sees only some micro-batches: their buffers would differ. Give "
    "BatchNorm track_running_stats=False or a stage without replicas, or use another norm"
)
_SHARED = (
    "which a stage on another worker or device has too, as a copy of its own: the two would differ. "
    "Give each stage a module of its own, or let both be on one device of one worker"
)


class Replicas:
    """The stages that have replicas at the same workers, as one of these workers sees them.

    Args:
        workers: in the order in which their sums are added.
        stages: the stages' numbers.
        parameters: of all of them.
    """

    def __init__(
        self, workers: Sequence[str], stages: Sequence[int], parameters: Iterable[nn.Parameter]
    ) -> None:
        self.workers = list(workers)
        self.stages = list(stages)
        self._parameters = list(dict.fromkeys(parameters))
        self._before: Sums = []

    def begin(self) -> None:
        """Sets aside the gradients of former mini-batches, which are sums over all replicas."""
        self._before = self.sums()
        for parameter in self._parameters:
            parameter.grad = None

    def sums(self) -> Sums:
        """This replica's gradients; None for a parameter that none of its micro-batches used."""
        return [parameter.grad for parameter in self._parameters]

    def add_up(self, sums: Sequence[Sums]) -> None:
        """Takes the sums of all replicas, this one's among them."""
        for parameter, before, *found in zip(self._parameters, self._before, *sums, strict=True):
            there = [one.to(parameter.device) for one in found if one is not None]
            total = functools.reduce(torch.add, there) if there else None
            parameter.grad = (
                before if total is None else total if before is None else before + total
            )
        self._before = []


@contextlib.contextmanager
def unchanged_buffers(layers: nn.Module, shared: Collection[str] | None = None) -> Iterator[None]:
    """Watches buffers of which others have copies.

    Args:
        layers: of a stage.
        shared: those that a stage elsewhere has too; None: the stage has replicas, which have all.

    Raises:
        RuntimeError: a buffer was changed, as running statistics are.
    """
    found = dict(layers.named_buffers(remove_duplicate=False))
    names = found.keys() if shared is None else shared
    before = [(name, found[name], found[name]._version) for name in names if name in found]
    yield
    now = dict(layers.named_buffers(remove_duplicate=False))
    for name, buffer, version in before:
        if now.get(name) is not buffer or buffer._version != version:
            why = _OF_A_REPLICA if shared is None else _SHARED
            raise RuntimeError(f"the stage changes its buffer '{name}', {why}")
