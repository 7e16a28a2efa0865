"""What the loss of each micro-batch counts in that of the mini-batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Loss = Callable[[Any, Any], Tensor]

_OF_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)


def weights_of(
    rows: Sequence[int], loss: Loss, reduction: str | None, targets: Sequence[Any]
) -> list[float]:
    """The weight of each micro-batch's loss in that of the mini-batch.

    Args:
        rows: the rows of each.
        loss: says how it reduces, unless ``reduction`` does.
        reduction: ``"mean"``, ``"batchmean"``, ``"sum"`` or None.
        targets: of each.

    Raises:
        ValueError: the loss reduces in no such way.
    """
    found = reduction or _reduction_of(loss)
    if found not in ("mean", "batchmean", "sum"):
        raise ValueError(
            f"reduction is not one of 'mean', 'batchmean', 'sum': {found!r}. If the loss does not say "
            'which, give pipe.step reduction="mean" or "sum"'
        )
    if found == "sum":
        return [1.0] * len(rows)
    parts = _class_weights(loss, targets) if found == "mean" else None
    parts = parts or list(rows)
    if not any(parts):  # without rows the loss is what it is for none, NaN for a mean
        return [1.0] * len(parts)
    whole = sum(parts)
    return [part / whole for part in parts]


def _reduction_of(loss: Loss) -> str:
    """What the loss says of itself: a module or a function of ``torch.nn.functional`` with arguments."""
    if isinstance(loss, functools.partial):
        return loss.keywords.get("reduction") or _reduction_of(loss.func)
    return getattr(loss, "reduction", "mean")


def _class_weights(loss: Loss, targets: Sequence[Any]) -> list[float] | None:
    """The sums that torch's losses of classes divide by: of the weights of the classes of those that
    they do not ignore. None: another loss, or all are ignored.
    """
    options = _options_of_classes(loss)
    if options is None or not all(map(_are_classes, targets)):
        return None
    weight, ignored = options
    sums = []
    for target in targets:
        classes = target.long()  # an index of uint8 would be a mask
        kept = classes[classes != ignored]
        sums.append(
            kept.new_tensor(kept.numel()) if weight is None else weight.to(kept.device)[kept].sum()
        )
    found: list[float] = torch.stack(sums).tolist()
    return found if any(found) else None


def _options_of_classes(loss: Loss) -> tuple[Tensor | None, int] | None:
    """The weight and ``ignore_index`` of a cross entropy or of its second half; None: it is neither."""
    if isinstance(loss, functools.partial):
        inner, given = loss.func, loss.keywords
    else:
        inner, given = loss, {}
    if inner in (functional.cross_entropy, functional.nll_loss):
        return given.get("weight"), given.get("ignore_index", -100)
    if isinstance(inner, _OF_CLASSES) or _is_scripted_one(inner):
        return inner.weight, inner.ignore_index
    return None


def _is_scripted_one(loss: Loss) -> bool:
    names = [kind.__name__ for kind in _OF_CLASSES]
    return isinstance(loss, torch.jit.ScriptModule) and loss.original_name in names


def _are_classes(target: Any) -> bool:
    """Rather than a probability for each."""
    return isinstance(target, Tensor) and not target.is_floating_point()
