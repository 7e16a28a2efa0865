"""How a mini-batch is split: the driver splits inputs, the last stage's worker splits targets."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from weft.pipe._inputs import NoChunk, check_rows
from weft.pipe._workers.values import leaves, wants_gradient


def split(values: Any, chunks: int, name: str = "inputs") -> list[Any]:
    """The micro-batches of a value or of a tuple of arguments, as ``tensor.chunk`` makes them.

    Args:
        values: what is split.
        chunks: into how many.
        name: what an error calls the values.

    Raises:
        TypeError: there is no tensor.
        ValueError: the tensors do not give as many parts each, or one has no dimension.
    """
    alone = not isinstance(values, tuple)
    values = (values,) if alone else values
    tensors = [value for value in values if isinstance(value, Tensor)]
    if not tensors:
        kinds = ", ".join(type(value).__name__ for value in values)
        raise TypeError(
            f"{name} do not have any tensors: ({kinds}); a tensor that is to be split is itself the value, "
            "or an item of a tuple, not inside a list or a dictionary"
        )
    if not all(tensor.dim() for tensor in tensors):
        raise ValueError(
            f"{name} are split along dimension 0, and a tensor has no dimension: wrap it in "
            "weft.pipe.NoChunk"
        )
    pieces = [value.chunk(chunks) if isinstance(value, Tensor) else None for value in values]
    count = min(len(piece) for piece in pieces if piece is not None)
    if any(len(piece) != count for piece in pieces if piece is not None):
        raise ValueError(
            "the tensors give different numbers of micro-batches: their first dimensions differ"
        )
    if len(tensors) > 1:
        check_rows([[one.size(0) for one in piece] for piece in pieces if piece is not None])

    make = getattr(type(values), "_make", tuple)  # of a named tuple

    def of(number: int) -> tuple[Any, ...]:
        return make(
            piece[number]
            if piece is not None
            else value.tensor
            if isinstance(value, NoChunk)
            else value
            for piece, value in zip(pieces, values, strict=True)
        )

    return [of(number)[0] if alone else of(number) for number in range(count)]


def given_leaves(values: Any) -> list[Any]:
    """The leaves of a value of :func:`split`."""
    values = values if isinstance(values, tuple) else (values,)
    return leaves([one.tensor if isinstance(one, NoChunk) else one for one in values])


def refuse_gradients(values: Any, why: str) -> None:
    """Raises ValueError if a tensor in a value of :func:`split` wants a gradient."""
    if any(map(wants_gradient, given_leaves(values))):
        raise ValueError(f"{why}: detach what requires a gradient")


def wanting_gradients(micro_batches: list[Any]) -> list[Tensor]:
    """The tensors of all micro-batches that want gradients, in the order of their gradients."""
    return [leaf for one in micro_batches for leaf in leaves(one) if wants_gradient(leaf)]


def rows_of(values: Any, micro_batches: list[Any]) -> list[int]:
    """How many rows each micro-batch of :func:`split` has.

    Of a tuple these are the rows of the tensor with the most: others may have one for each micro-batch.
    What goes whole to all has none.
    """
    if isinstance(values, Tensor):
        return [one.size(0) for one in micro_batches]
    tensors = [at for at, value in enumerate(values) if isinstance(value, Tensor)]
    return max(([one[at].size(0) for one in micro_batches] for at in tensors), key=sum)
