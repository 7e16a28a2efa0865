"""The inputs of a Pipe, and the part of them that one micro-batch gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

#: The checkpoint modes.
CHECKPOINTS = ("always", "except_last", "never")


class NoChunk:
    """Wraps an input tensor of :meth:`Pipe.forward` that every micro-batch gets whole.

    Args:
        inp: the tensor; it has no batch dimension to split.

    Raises:
        TypeError: ``inp`` is not a tensor.

    ::

        output = pipe(batch, NoChunk(mask))
    """

    def __init__(self, inp: Tensor) -> None:
        if not isinstance(inp, Tensor):
            raise TypeError(f"NoChunk only supported for tensors, found: {type(inp).__name__}")
        self._tensor = inp

    @property
    def tensor(self) -> Tensor:
        """The wrapped tensor."""
        return self._tensor


def check_chunks(chunks: int) -> int:
    """The number of micro-batches as an int; raises unless it is a whole number of at least 1."""
    if isinstance(chunks, (str, bytes)) or int(chunks) != chunks:
        raise TypeError(f"chunks must be an int, got {chunks!r}")
    chunks = int(chunks)
    if chunks < 1:
        raise ValueError(f"number of chunks must be positive integer, not {chunks}")
    return chunks


def check_checkpoint(mode: str) -> str:
    """The checkpoint mode as a string; raises for what is none."""
    mode = str(mode)
    if mode not in CHECKPOINTS:
        raise ValueError(f"checkpoint is not one of 'always', 'except_last', or 'never': '{mode}'")
    return mode


def check_rows(rows: list[list[int]]) -> None:
    """Raises ValueError if the tensors' rows are not in proportion in all micro-batches.

    Args:
        rows: of each tensor, by micro-batch. One may have several for each of another, or one for each
            micro-batch.
    """
    if all(of_one == rows[0] for of_one in rows):
        return
    rows = [of_one for of_one in rows if max(of_one) > 1]
    wholes = [sum(of_one) for of_one in rows]
    for parts in zip(*rows, strict=True):
        if any(
            part * wholes[0] != parts[0] * whole for part, whole in zip(parts, wholes, strict=True)
        ):
            raise ValueError(
                f"tensors of {', '.join(map(str, wholes))} rows give micro-batches of "
                f"{', '.join(map(str, parts))}: their rows do not belong together"
            )


def check_inputs(
    inputs: tuple[Any, ...], chunks: int, devices: Sequence[torch.device]
) -> list[Tensor]:
    """The tensors to split; raises unless there is one, and they fit together, on the first device."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    if not tensors:
        kinds = ", ".join(type(value).__name__ for value in inputs)
        raise TypeError(
            f"inputs do not have any tensors: ({kinds}); a tensor that is to be split is an argument "
            "itself, not inside a list or a dictionary"
        )
    first = devices[0] if devices else torch.device("cpu")
    for tensor in tensors:
        if tensor.device != first:
            raise ValueError(
                "All inputs should be on the same device as the first partition: one is on "
                f"{tensor.device}, the first partition on {first}"
            )
    on_meta = [device.type == "meta" for device in devices]
    if any(on_meta) and not all(on_meta):
        raise ValueError(
            f"partition {on_meta.index(False)} is not on meta as others are, and a meta tensor cannot "
            'be copied; wrap a child without parameters in WithDevice(child, "meta")'
        )
    if torch.jit.is_tracing():
        return tensors  # its sizes are tensors
    if any(one.shape[:1] != tensors[0].shape[:1] for one in tensors) and all(
        one.dim() for one in tensors
    ):
        rows = [[part.size(0) for part in one.detach().chunk(chunks)] for one in tensors]
        if len(set(map(len, rows))) == 1:  # else they give different numbers of micro-batches
            check_rows(rows)
    return tensors


def first_chunk(value: Any, chunks: int) -> Any:
    """What the first micro-batch gets of a value; no other gets more."""
    if isinstance(value, NoChunk):
        return value.tensor
    return value.chunk(chunks)[0] if isinstance(value, Tensor) else value
