"""What the example trains: layers, the batch of each step, and a loss."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from examples.digits import data
from examples.digits.model import Classifier, FrontEnd
from examples.pipeline import model, text
from examples.pipeline_workers.stages import Loss

BATCH, CONTEXT = 16, 32


@dataclasses.dataclass(frozen=True)
class Task:
    """All of it is the same each time that it is asked for."""

    layers: Callable[[], nn.Sequential]
    batch: Callable[[int], tuple[Tensor, Tensor]]  # of a step: inputs and targets
    loss: nn.Module


def play() -> Task:
    """The next character of a play, by a transformer of nine layers."""
    words = text.load()

    def layers() -> nn.Sequential:
        return model.transformer(len(words.alphabet), CONTEXT, width=48, heads=4, blocks=6, seed=0)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        return text.batch(words.train, BATCH, CONTEXT, torch.Generator().manual_seed(step))

    return Task(layers, batch, Loss())


def digits() -> Task:
    """Handwritten digits, by convolutions and a classifier of two layers."""
    everything = data.load()
    train = everything.take(data.split(everything.labels, seed=0)[0])

    def layers() -> nn.Sequential:
        first, *others = Classifier(seed=0).layers
        return nn.Sequential(FrontEnd(seed=0), first, nn.Sequential(*others))

    @functools.lru_cache(2)
    def epoch(number: int) -> list[data.Digits]:
        return data.batches(train, BATCH, 0, number)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        number, at = divmod(step, len(train) // BATCH)
        return epoch(number)[at].images, epoch(number)[at].labels

    return Task(layers, batch, nn.CrossEntropyLoss())


TASKS = {"play": play, "digits": digits}
