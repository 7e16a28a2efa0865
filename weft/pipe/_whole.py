"""Partitions of a ``weft.compat.GPipe``: a layer gets a tuple as one argument, as in torchgpipe."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

from weft import _C


class WholeSequential(nn.Sequential):
    """Layers that get a tuple as one argument, as in torchgpipe, also where the chain is cut.

    The engine makes a tuple a partition's arguments, and splits the tensors among these. So a value
    goes from partition to partition as :func:`with_mark` gives it.
    """


def with_mark(value: Any) -> tuple[Any, ...]:
    """Whether the value is a tuple, and its items; else itself."""
    return (True, *value) if isinstance(value, tuple) else (False, value)


def without_mark(parts: tuple[Any, ...]) -> Any:
    """The value that :func:`with_mark` got."""
    is_tuple, *values = parts
    return tuple(values) if is_tuple else values[0]


def whole_partition(layers: dict[str, nn.Module], is_last: bool) -> WholeSequential:
    """Some layers of a WholeSequential, as a partition of the engine."""
    # Hooks: the engine does not run TorchScript layers without Python then, which would unpack.
    partition = WholeSequential(OrderedDict(layers))
    partition.register_forward_pre_hook(_unmarks)
    if not is_last:
        partition.register_forward_hook(_marks)
    return partition


def _unmarks(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (without_mark(arguments),) if _runs_in_engine() else arguments


def _marks(_: nn.Module, _arguments: Any, output: Any) -> Any:
    return with_mark(output) if _runs_in_engine() else output


def _runs_in_engine() -> bool:
    """A program may call a partition of its own accord, as any Sequential."""
    return _C.pipe.micro_batch() is not None
