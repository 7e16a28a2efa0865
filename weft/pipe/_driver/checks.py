"""What a mini-batch over workers refuses before it begins, and what its loss is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from weft.pipe._workers.splitting import rows_of


def check_loss(loss: Callable[[Any, Any], Tensor]) -> None:
    trained = isinstance(loss, nn.Module) and [
        name for name, one in loss.named_parameters() if one.requires_grad
    ]
    if trained:
        raise ValueError(
            f"the loss has parameters ({', '.join(trained)}), and each step gives its worker a new copy, "
            "whose gradients are lost: let the last layer have them, or switch off requires_grad"
        )


def check_surroundings(backward: bool = True) -> None:
    if any(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")):
        raise ValueError(
            "autocast is active here, and the stages' workers do not see it: use it inside the layers"
        )
    if backward and not torch.is_grad_enabled():
        raise ValueError(
            "gradients are off here (no_grad or inference_mode), and step computes them"
        )


def weights_of(
    inputs: Any, chunks: int, loss: Callable[[Any, Any], Tensor], reduction: str | None
) -> list[float]:
    """The weight of each micro-batch's loss in that of the mini-batch."""
    reduction = reduction or getattr(loss, "reduction", "mean")
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is not one of 'mean', 'sum': {reduction!r}")
    rows = rows_of(inputs, chunks)
    whole = max(sum(rows), 1)  # without rows the loss is what it is for none, NaN for a mean
    return [row / whole if reduction == "mean" else 1.0 for row in rows]
