"""Shakespeare's Coriolanus as numbers: the text that ships with the example, cut for training."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

FILE = Path(__file__).with_name("coriolanus.txt")


@dataclasses.dataclass(frozen=True)
class Text:
    """A text as character numbers. The last tenth is held out: no training batch sees it."""

    alphabet: str
    train: Tensor  # (n,) int64
    held_out: Tensor

    def encode(self, words: str) -> Tensor:
        """The numbers of these characters; ValueError for one that the text doesn't have."""
        return torch.tensor([self.alphabet.index(character) for character in words])

    def decode(self, numbers: Tensor) -> str:
        """The characters of these numbers."""
        return "".join(self.alphabet[number] for number in numbers.tolist())


def load(path: Path = FILE) -> Text:
    """Reads the text; its alphabet is the characters that occur, in order."""
    words = path.read_text(encoding="utf-8")
    alphabet = "".join(sorted(set(words)))
    number = {character: index for index, character in enumerate(alphabet)}
    everything = torch.tensor([number[character] for character in words])
    cut = len(everything) * 9 // 10
    return Text(alphabet, everything[:cut], everything[cut:])


def batch(
    numbers: Tensor, size: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random places of the text: (size, context) characters, and for each the one that follows."""
    begins = torch.randint(len(numbers) - context, (size, 1), generator=generator)
    places = begins + torch.arange(context)
    return numbers[places], numbers[places + 1]
