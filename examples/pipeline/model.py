"""The transformer as a Sequential, which is what a pipeline can cut anywhere."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Embed(nn.Module):
    """Characters and their places: (n, context) numbers to (n, context, width)."""

    def __init__(self, characters: int, context: int, width: int) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, width)
        self.place = nn.Parameter(torch.randn(context, width) * 0.02)
        nn.init.normal_(self.character.weight, std=0.02)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.character(numbers) + self.place[: numbers.size(1)]


class Block(nn.Module):
    """Attention to what came before, then a small network, each added to what goes by."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.joined = nn.Linear(width, width)
        self.before_network = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.before_attention(x))
        return x + self.network(self.before_network(x))

    def attend(self, x: Tensor) -> Tensor:
        n, context, width = x.shape
        split = self.projections(x).view(n, context, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.joined(seen.transpose(1, 2).reshape(n, context, width))


def transformer(
    characters: int, context: int, width: int, heads: int, blocks: int, seed: int
) -> nn.Sequential:
    """(n, context) character numbers to (n, context, characters) scores for the next one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            Embed(characters, context, width),
            *(Block(width, heads) for _ in range(blocks)),
            nn.LayerNorm(width),
            nn.Linear(width, characters),
        )


def scripted(model: nn.Sequential) -> nn.Sequential:
    """The same layers as TorchScript: they run without Python, so stages never wait for the GIL."""
    return nn.Sequential(*(torch.jit.script(layer) for layer in model))
