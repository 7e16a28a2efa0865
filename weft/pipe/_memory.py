"""The memory of each partition of a Pipe in training, measured on one micro-batch, in bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from weft.pipe import _profile
from weft.pipe._inputs import check_inputs, first_chunk


@dataclasses.dataclass(frozen=True)
class PartitionMemory:
    """One partition's memory, in bytes. Memory shared by two partitions counts in both."""

    device: torch.device
    parameters: int
    buffers: int
    gradients: int  #: of the parameters that require one
    inputs: int  #: of one micro-batch; a checkpointed one keeps no more
    activations: int  #: of one micro-batch, as autograd saves them for backward
    peak: int  #: the most that activations and inputs of a mini-batch take at once

    @property
    def total(self) -> int:
        """The bytes at the peak, without an optimizer's state."""
        return self.parameters + self.buffers + self.gradients + self.peak


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """The memory of a Pipe's partitions; ``print`` shows it as a table."""

    partitions: tuple[PartitionMemory, ...]
    micro_batches: int
    checkpoint: str

    def __str__(self) -> str:
        names = ("parameters", "buffers", "gradients", "inputs", "activations", "peak", "total")
        lines = [
            f"{self.micro_batches} micro-batches, checkpoint={self.checkpoint}; MiB, inputs and "
            "activations of one micro-batch",
            f"{'partition':<14}" + "".join(f"{name:>13}" for name in names),
        ]
        for number, one in enumerate(self.partitions):
            cells = "".join(f"{getattr(one, name) / 2**20:>13.3f}" for name in names)
            lines.append(f"{f'{number} on {one.device}':<14}{cells}")
        return "\n".join(lines)


def memory_report(
    partitions: Sequence[nn.Sequential],
    devices: Sequence[torch.device],
    chunks: int,
    checkpoint: str,
    inputs: tuple[Any, ...],
) -> MemoryReport:
    """Runs one micro-batch of a mini-batch through copies of the layers, on their devices."""
    micro_batches = max(len(one.chunk(chunks)) for one in check_inputs(inputs, chunks, devices))
    args: tuple[Any, ...] = tuple(_first(value, chunks) for value in inputs)
    found: list[PartitionMemory] = []
    skips: Any = {}
    for partition, device in zip(partitions, devices, strict=True):
        given = _bytes(pytree.tree_leaves((args, skips)))
        saved, args, skips = _profile.kept(partition, args, skips, device)
        parameters = list(partition.parameters())
        found.append(
            PartitionMemory(
                device,
                parameters=_bytes(parameters),
                buffers=_bytes(partition.buffers()),
                gradients=_bytes(p for p in parameters if p.requires_grad),
                inputs=given,
                activations=saved,
                peak=_peak(checkpoint, micro_batches, given, saved),
            )
        )
    return MemoryReport(tuple(found), micro_batches, checkpoint)


def _peak(checkpoint: str, micro_batches: int, given: int, saved: int) -> int:
    """A stage recomputes one micro-batch at a time, after the one that was kept."""
    if checkpoint == "never":
        return micro_batches * saved
    checkpointed = micro_batches - (checkpoint == "except_last")
    return checkpointed * given + saved


def _first(value: Any, chunks: int) -> Any:
    """What the first micro-batch gets. A piece is copied: it has the storage of the whole."""
    piece = first_chunk(value, chunks)
    if not isinstance(value, Tensor):
        return piece
    return piece.detach().clone().requires_grad_(value.requires_grad)


def _bytes(values: Iterable[Any]) -> int:
    """The bytes of the tensors among the values, each tensor once."""
    tensors = {id(value): value for value in values if isinstance(value, Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
