"""Whether every skip of a model has one stash and, later, one pop."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from weft.pipe.skip._skippable import Skippable
from weft.pipe.skip._store import SkipKey


def _layers(module: nn.Sequential, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers in the order they run in, those of Sequentials inside included."""
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            yield from _layers(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


class _Book:
    """What was stashed and popped so far, and what is wrong with it."""

    def __init__(self) -> None:
        self.stashed: dict[SkipKey, str] = {}
        self.popped: set[SkipKey] = set()
        self.faults: list[str] = []

    def enter(self, layer: str, module: Skippable) -> None:
        both = module.stashable_names & module.poppable_names
        for name in sorted(both):
            self.faults.append(f"'{layer}' declared '{name}' both as stashable and as poppable")
        for key in module.stashable():
            if key[1] not in both:
                self._stash(layer, key)
        for key in module.poppable():
            if key[1] not in both:
                self._pop(layer, key)

    def _stash(self, layer: str, key: SkipKey) -> None:
        if key in self.stashed:
            self.faults.append(
                f"'{layer}' redeclared '{key[1]}' as stashable but not isolated by namespace"
            )
        self.stashed.setdefault(key, layer)

    def _pop(self, layer: str, key: SkipKey) -> None:
        if key in self.popped:
            self.faults.append(
                f"'{layer}' redeclared '{key[1]}' as poppable but not isolated by namespace"
            )
        elif key not in self.stashed:
            self.faults.append(f"'{layer}' declared '{key[1]}' as poppable but it was not stashed")
        else:
            self.popped.add(key)

    def close(self) -> None:
        for key, layer in self.stashed.items():
            if key not in self.popped:
                self.faults.append(
                    f"no module declared '{key[1]}' as poppable but stashed (by '{layer}')"
                )


def verify_skippables(module: nn.Sequential) -> None:
    """Checks that each skip name is stashed once and popped once, in this order.

    Raises TypeError that lists every fault. A name used by several pairs needs a
    :class:`Namespace` for each.
    """
    book = _Book()
    for name, layer in _layers(module):
        if isinstance(layer, Skippable):
            book.enter(name, layer)
    book.close()
    if book.faults:
        faults = "\n".join(f"* {fault}" for fault in book.faults)
        raise TypeError(f"one or more pairs of stash and pop do not match:\n\n{faults}")
