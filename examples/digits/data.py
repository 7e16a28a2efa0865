"""The UCI handwritten digits (1,797 grey images of 8 x 8) that scikit-learn ships.

Every process loads the same file and computes the same split from the seed, so no image is sent
to set a run up, and no image of the test set ever reaches a trainer.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

CLASSES = 10
SIDE = 8


@dataclasses.dataclass(frozen=True)
class Digits:
    """Images of shape (n, 1, 8, 8) with values in 0..1, and their labels."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Digits:
        """The images at these indices, in this order."""
        return Digits(self.images[indices], self.labels[indices])


def load() -> Digits:
    """All 1,797 digits."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        hint = "pip install -r examples/digits/requirements.txt"
        raise SystemExit(f"the digits example needs scikit-learn: {hint}") from error
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).div(16).unsqueeze(1)
    return Digits(images, torch.tensor(raw.target, dtype=torch.int64))


def split(labels: Tensor, seed: int, held_out: float = 0.2) -> tuple[Tensor, Tensor]:
    """Indices of the training and of the test images: a fixed share of every class is held out."""
    generator = torch.Generator().manual_seed(seed)
    train, test = [], []
    for label in labels.unique():
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        count = round(len(members) * held_out)
        test.append(members[:count])
        train.append(members[count:])
    return torch.cat(train), torch.cat(test)


def shard(train: Tensor, index: int, count: int) -> Tensor:
    """The part of the training images that trainer `index` of `count` owns.

    All shards have the same length, since the trainers step together; up to `count - 1` images
    are left out for it. The classes of a shard are as mixed as those of the whole, because `split`
    puts images of one class next to each other.
    """
    return train[index : len(train) // count * count : count]


def batches(digits: Digits, size: int, seed: int, epoch: int) -> list[Digits]:
    """One epoch of shuffled batches; each image is moved by up to one pixel each way."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(digits), generator=generator)
    moved = shift(digits.images, generator)
    return [Digits(moved, digits.labels).take(part) for part in order.split(size)]


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Moves every image by -1, 0 or 1 pixels in both directions; what comes in is empty paper."""
    count = len(images)
    padded = functional.pad(images, (1, 1, 1, 1))
    offset = torch.randint(0, 3, (count, 2), generator=generator)
    row = (offset[:, :1] + torch.arange(SIDE))[:, :, None]
    column = (offset[:, 1:] + torch.arange(SIDE))[:, None, :]
    return padded[torch.arange(count)[:, None, None], 0, row, column].unsqueeze(1)
