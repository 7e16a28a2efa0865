"""Trains a small transformer on a play, cuts it in two, and writes what the workers and the front load.

python -m examples.text_generation.make_model FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import weft  # noqa: F401  registers torch.ops.weft
from examples.pipeline import text

CONTEXT, WIDTH, HEADS, LETTERS = 48, 64, 4, 128  # letters are ASCII


class Block(nn.Module):
    """Attention to what came before, and a layer of neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.split, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.neurons = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = self.split(self.before(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)  # rows, heads, letters, width
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).flatten(2))
        return x + self.neurons(self.after(x))


class First(nn.Module):
    """Letters to activations."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, letters: Tensor) -> Tensor:
        places = torch.arange(letters.shape[1])
        return self.blocks(self.letters(letters) + self.places(places))


class Second(nn.Module):
    """Activations to the logits of the letters that follow."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x))


class Front(nn.Module):
    """Continues a text, letter by letter; the halves of the model are on two workers."""

    def __init__(self) -> None:
        super().__init__()
        self.context = CONTEXT

    def forward(self, prompt: str, count: int) -> str:
        letters = [ord(letter) % 128 for letter in prompt]
        if len(letters) == 0:
            letters.append(10)
        result = ""
        like: list[Tensor] = []
        for _ in range(count):
            last = letters[-self.context :]
            padded = torch.zeros(1, self.context, dtype=torch.long)  # one shape: one compilation
            padded[0, : len(last)] = torch.tensor(last)
            seen: list[Any] = [padded]
            halfway: list[Any] = [torch.ops.weft.call("first", "part", seen, like)]
            logits = torch.ops.weft.call("second", "part", halfway, like)
            chances = torch.softmax(logits[0, len(last) - 1] / 0.7, 0)
            letters.append(int(torch.multinomial(chances, 1).item()))
            result += chr(letters[-1])
        return result


def train(model: nn.Module, steps: int) -> float:
    """The mean loss of the last tenth of the steps."""
    numbers = torch.tensor([ord(letter) % 128 for letter in text.FILE.read_text()])
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        inputs, targets = text.batch(numbers, 32, CONTEXT, generator)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def main() -> None:
    """Writes first.pt, second.pt and front.pt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    first, second = First(), Second()
    loss = train(nn.Sequential(first, second), args.steps)
    for name, part in (("first", first), ("second", second), ("front", Front())):
        torch.jit.script(part.eval()).save(str(args.folder / f"{name}.pt"))
    print(f"loss {loss:.2f}; wrote first.pt, second.pt and front.pt into {args.folder}")


if __name__ == "__main__":
    main()
