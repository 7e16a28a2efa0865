"""The two halves of the network: convolutions near the images, a classifier on the server."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.digits.data import CLASSES

FEATURES = 32 * 4 * 4
MEAN, DEVIATION = 0.3, 0.37  # of the pixels, roughly


class FrontEnd(nn.Module):
    """Images to features. Every trainer has one of its own, with the same weights."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Conv2d(1, 16, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.Conv2d(16, 32, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Flatten(),
            )

    def forward(self, images: Tensor) -> Tensor:
        """(n, 1, 8, 8) to (n, FEATURES)."""
        return self.layers((images - MEAN) / DEVIATION)


class Classifier(nn.Module):
    """Features to class scores. There is one, on the server, and the trainers share it."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layers = nn.Sequential(
                nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, CLASSES)
            )

    def forward(self, features: Tensor) -> Tensor:
        """(n, FEATURES) to (n, CLASSES)."""
        return self.layers(features)


def parameter_count(module: nn.Module) -> int:
    """How many numbers the module learns."""
    return sum(parameter.numel() for parameter in module.parameters())
