"""What a pickle may cost under the request policy ``registered``: depth, hashing and copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft._torch.pickle_rules import SIZED
from weft._torch.request_policy import refused

# CPython hashes nested tuples, and frees nested slices and exceptions, by recursion in C without a limit.
# Its pickler cannot write tuples as deep as this. What is freed so may be in lists, and CPython frees as
# many levels of lists again in one recursion.
_MAX_DEPTH = 1000
_MAX_FREED_DEPTH = 100
# A tuple that holds another tuple twice, and so on, is hashed in exponential time; sets of them are
# compared in exponential time.
_MAX_KEY_TUPLES = 1000
# What calls and states may copy, in items or bytes, for each byte of the pickle. Without this a pickle
# that names the same value again and again would take time in the square of its size.
_MAX_COPIES = 4
_FREE_COPIES = 1 << 16

_HELD = (tuple, frozenset, slice, BaseException)  # hashed, compared or freed with their parts


class PickleLimits:
    """Counts what one pickle costs; raises UnpicklingError if that is too much.

    Args:
        size: of the pickle, in bytes.
    """

    def __init__(self, size: int) -> None:
        # By id, with the value itself, so that no other value takes its id: the depth of what is hashed
        # or freed by recursion, and the number of such values in it.
        self._nested: dict[int, tuple[Any, int, int]] = {}
        self._copies_left = _FREE_COPIES + _MAX_COPIES * size

    def check_depth(self, value: Any, parts: Iterable[Any]) -> None:
        """Notes that ``value`` holds ``parts``; raises if it is nested too deeply."""
        depth = weight = 0
        for part in parts:
            if (known := self._nested.get(id(part))) is not None:
                depth, weight = max(depth, known[1]), weight + known[2]
            elif isinstance(part, _HELD):
                depth, weight = max(depth, 1), weight + 1
        # CPython itself limits the recursion into objects of classes in Python.
        held = isinstance(value, _HELD)
        most = _MAX_DEPTH if isinstance(value, (tuple, frozenset)) else _MAX_FREED_DEPTH
        if held and depth >= most:
            raise refused(f"and a {type(value).__qualname__} may be nested at most {most} deep")
        if weight:
            weight = min(weight, _MAX_KEY_TUPLES) + 1
            self._nested[id(value)] = (value, depth + 1 if held else 0, weight)

    def check_keys(self, keys: Iterable[Any]) -> None:
        """Raises if a value that is about to be hashed holds too many tuples."""
        for key in keys:
            if id(key) in self._nested and self._nested[id(key)][2] > _MAX_KEY_TUPLES:
                raise refused(f"and a key may hold at most {_MAX_KEY_TUPLES} tuples")

    def count_copies(self, values: Iterable[Any]) -> None:
        """Counts copies of these values; raises if the pickle has had too much copied."""
        self._copies_left -= sum(len(value) for value in values if isinstance(value, SIZED))
        if self._copies_left < 0:
            raise refused("and its values are copied too often")
