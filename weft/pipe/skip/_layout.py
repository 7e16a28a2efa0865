"""Between which partitions of a Pipe its skips go."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from weft.pipe.skip._skippable import Skippable
from weft.pipe.skip._store import SkipKey


def skip_layout(partitions: Sequence[nn.Module]) -> dict[SkipKey, tuple[int, int]]:
    """For every skip, the partition that stashes it and the one that pops it.

    Skippables anywhere inside the layers count. A skip that no layer pops is left out;
    :func:`verify_skippables` reports it.
    """
    source: dict[SkipKey, int] = {}
    layout: dict[SkipKey, tuple[int, int]] = {}
    for index, partition in enumerate(partitions):
        found = [module for module in partition.modules() if isinstance(module, Skippable)]
        source.update((key, index) for module in found for key in module.stashable())
        for key in (key for module in found for key in module.poppable()):
            if key in source:
                layout[key] = (source[key], index)
    return layout
