"""Modules for the tests of scripted remote modules: names, defaults and states that are easily taken wrongly.

Without `from __future__ import annotations`: see named_models.py.
"""

import enum

import torch
from torch import Tensor, nn

import weft


class TakesLike(nn.Module):
    def forward(self, x: Tensor, like: list[int], args: int) -> int:
        return sum(like) + args


class TakesModules(nn.Module):
    """Parameters called as what TorchScript code is usually made of."""

    def forward(self, torch: Tensor, List: Tensor, Any: Tensor) -> Tensor:
        return torch + List + Any


class TakesReserved(nn.Module):
    def forward(self, _weft_args: Tensor) -> Tensor:
        return _weft_args
