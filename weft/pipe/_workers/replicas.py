"""Replicas of stages: each adds up the gradients of its micro-batches, then all add up their sums.

The sums are added in the order of the replicas, so that all have the same bits, in each run.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

Sums = list[Tensor | None]

_OF_A_REPLICA = (
    "and has replicas, of which each sees only some micro-batches: they would differ. Give it a stage "
    "without replicas; or BatchNorm track_running_stats=False, an embedding no max_norm"
)
_SHARED = (
    "which a stage on another worker or device has too, or which shared memory with another buffer "
    "before it came to this worker: each is a copy of its own now, and the two would differ. "
    "Give each stage a module of its own, or let both be on one device of one worker"
)
_OF_THE_LOSS = (
    "and each step gives its worker a new copy, so the change would be lost: let the last layer keep "
    "it"
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


def unchanged_in_replica(layers: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Raises RuntimeError if a run of the stage changes what its replicas have too."""
    return _unchanged("the stage", lambda: _named(layers), _OF_A_REPLICA)


def unchanged_buffers(
    layers: nn.Module, shared: Collection[str]
) -> contextlib.AbstractContextManager[None]:
    """Raises RuntimeError if a run changes buffers that a stage elsewhere has too."""

    def found() -> dict[str, Tensor]:
        buffers = dict(layers.named_buffers(remove_duplicate=False))
        return {name: buffers[name] for name in shared if name in buffers}

    return _unchanged("the stage", found, _SHARED)


def unchanged_loss(loss: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Raises RuntimeError if a run of the loss changes its buffers: each step sends it anew."""
    return _unchanged("the loss", lambda: dict(loss.named_buffers()), _OF_THE_LOSS)


def _named(layers: nn.Module) -> dict[str, Tensor]:
    found = {**dict(layers.named_parameters()), **dict(layers.named_buffers())}
    return {name: one for name, one in found.items() if not is_lazy(one) and not one.is_inference()}


@contextlib.contextmanager
def _unchanged(who: str, named: Callable[[], dict[str, Tensor]], why: str) -> Iterator[None]:
    before = [(name, one, one._version) for name, one in named().items()]
    yield
    now = named()
    for name, one, version in before:
        if now.get(name) is not one or one._version != version:
            kind = "parameter" if isinstance(one, nn.Parameter) else "buffer"
            raise RuntimeError(f"{who} changes its {kind} '{name}', {why}")
