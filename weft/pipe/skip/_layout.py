"""Where the skips of a model go, and whether each has one stash and, later, one pop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

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


def _layers(module: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers in the order they run in, those of Sequentials inside included."""
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            yield from _layers(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


class Declared(NamedTuple):
    """What a layer stashes and pops."""

    layer: str
    stashes: list[SkipKey]
    pops: list[SkipKey]

    @staticmethod
    def inside(layer: str, module: nn.Module) -> list[Declared]:
        """What the module and those in it stash and pop. Those that pop come last: a module may have
        them in another order than that in which it runs them.
        """
        found = [
            Declared(name, list(one.stashable()), list(one.poppable()))
            for name, one in module.named_modules(prefix=layer)
            if isinstance(one, Skippable)
        ]
        return sorted(found, key=lambda one: bool(one.pops))


def _faults(layers: Iterable[Declared]) -> Iterator[str]:
    stashed: dict[SkipKey, str] = {}
    popped: set[SkipKey] = set()
    again = "but not isolated by namespace"
    for layer, stashes, pops in layers:
        both = {name for _, name in stashes} & {name for _, name in pops}
        for name in sorted(both):
            yield f"'{layer}' declared '{name}' both as stashable and as poppable"
        for key in stashes:
            if key[1] in both:
                continue
            if key in stashed:
                yield f"'{layer}' redeclared '{key[1]}' as stashable {again}"
            stashed.setdefault(key, layer)
        for key in pops:
            if key[1] in both:
                continue
            if key in popped:
                yield f"'{layer}' redeclared '{key[1]}' as poppable {again}"
            elif key not in stashed:
                yield f"'{layer}' declared '{key[1]}' as poppable but it was not stashed"
            else:
                popped.add(key)
    for key, layer in stashed.items():
        if key not in popped:
            yield f"no module declared '{key[1]}' as poppable but stashed (by '{layer}')"


def verify_declared(layers: Iterable[Declared]) -> None:
    """As :func:`verify_skippables`, of layers in the order they run in."""
    faults = "\n".join(f"* {fault}" for fault in _faults(layers))
    if faults:
        raise TypeError(f"one or more pairs of stash and pop do not match:\n\n{faults}")


def verify_skippables(module: nn.Sequential) -> None:
    """Checks that each skip name is stashed once and popped once, in this order.

    A name used by several pairs needs a :class:`Namespace` for each.

    Args:
        module: the layers.

    Raises:
        TypeError: a skip is not; the text lists every fault.
    """
    verify_declared(one for name, layer in _layers(module) for one in Declared.inside(name, layer))
