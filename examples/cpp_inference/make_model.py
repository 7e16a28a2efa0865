"""Writes the TorchScript file that the server loads: ``python -m examples.cpp_inference.make_model``."""

from __future__ import annotations

import sys

import torch
from torch import nn


def classifier(columns: int = 64, classes: int = 10) -> nn.Module:
    """A small perceptron with random weights: what is served does not matter here."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(columns, 128), nn.ReLU(), nn.Linear(128, classes)).eval()


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else "model.pt"
    torch.jit.freeze(torch.jit.script(classifier())).save(path)
    print(f"wrote {path}")
