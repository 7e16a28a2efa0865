"""Where stashed tensors wait for their pop: in the Pipe that runs the layer, or in this thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch import Tensor

from weft import _C
from weft.pipe.skip._namespace import Namespace

#: Names one skip connection of a model.
SkipKey = tuple[Namespace | None, str]
SkipStore = dict[SkipKey, Tensor | None]


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.store: SkipStore = {}


_local = _PerThread()


@contextlib.contextmanager
def use_store(store: SkipStore) -> Iterator[SkipStore]:
    """Makes `store` what layers use outside a Pipe, on this thread, within the context."""
    before = _local.store
    _local.store = store
    try:
        yield store
    finally:
        _local.store = before


def put(key: SkipKey, tensor: Tensor | None) -> None:
    """Keeps a tensor for the layer that pops it.

    Outside a Pipe it is kept until the pop, or the next stash of the same skip on this thread.
    """
    skips = _C.pipe.current_skips()
    if skips is not None and key in skips:
        _C.pipe.stash(skips[key], tensor)
    else:
        _local.store[key] = tensor


def take(key: SkipKey) -> Tensor | None:
    """The stashed tensor, which is then gone; RuntimeError if there is none."""
    skips = _C.pipe.current_skips()
    try:
        if skips is not None and key in skips:
            return _C.pipe.pop(skips[key])
        return _local.store.pop(key)
    except (KeyError, RuntimeError) as error:
        # Autograd's errors are RuntimeErrors too, so the cause stays attached.
        raise RuntimeError(f"'{key[1]}' has not been stashed by a layer before this one") from (
            error if isinstance(error, RuntimeError) else None
        )
