"""Tensors under watch: what each must hold after an operation, and that nothing around it changed.

A tensor of a test is a view into a storage that has more in it. After an operation the whole storage
is compared with what it was before plus the results, byte by byte.
"""

from __future__ import annotations

import functools
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

# Long tensors repeat so many values: no block of any algorithm is a multiple of it, so that a part
# that is missing or in another's place is seen, and a model of the tile is a model of all of it.
TILE = 40_009
POISON = 0xA5
SMALL_VALUES = {torch.uint8: 60, torch.int8: 30, torch.bfloat16: 20, torch.float16: 150}


def seed_of(*what: object) -> int:
    return zlib.crc32(repr(what).encode())


@functools.lru_cache(maxsize=32)
def random_bits(seed: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """A tile of any bits at all, for what is moved and not computed with."""
    generator = torch.Generator().manual_seed(seed)
    count = min(numel, TILE)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    item = torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(0, 256, (count * item,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype)


@functools.lru_cache(maxsize=32)
def random_numbers(seed: int, numel: int, dtype: torch.dtype, most: int = 0) -> torch.Tensor:
    """A tile of whole numbers from 1 whose sums over a few ranks are exact in `dtype`."""
    generator = torch.Generator().manual_seed(seed)
    count = min(numel, TILE)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    most = most or SMALL_VALUES.get(dtype, 100_000 if dtype != torch.int16 else 8_000)
    numbers = torch.randint(1, most + 1, (count,), generator=generator)
    if dtype.is_complex:
        imaginary = torch.randint(0, most + 1, (count,), generator=generator)
        return torch.complex(numbers.double(), imaginary.double()).to(dtype)
    return numbers.to(dtype)


def stretch(tile: torch.Tensor, numel: int) -> torch.Tensor:
    """The tensor of which this is the tile."""
    if numel <= tile.numel():
        return tile[:numel]
    return tile.repeat(-(-numel // tile.numel()))[:numel]


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@dataclass
class Part:
    """A view into one of a Memory's storages."""

    base: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, bases: Sequence[torch.Tensor]) -> torch.Tensor:
        base = bases[self.base]
        return torch.as_strided(base, self.size, self.stride, base.storage_offset() + self.offset)


class Memory:
    """Storages with one tensor or several in them."""

    def __init__(self, bases: list[torch.Tensor], parts: list[Part], layout: str) -> None:
        self.bases = bases
        self.parts = parts
        self.layout = layout
        self.tensors = [part.of(bases) for part in parts]
        self.before: list[torch.Tensor] = []
        self.poisoned = False

    def snapshot(self) -> None:
        self.before = [base.clone() for base in self.bases]

    def fill(self, part: int, values: torch.Tensor) -> None:
        self.tensors[part].copy_(values.reshape(self.parts[part].size))

    def wrong(self, results: dict[int, torch.Tensor], rounding: bool = False) -> str | None:
        """What is not as it was, where `results` are the parts that changed; None: all is right."""
        wanted = [base.clone() for base in self.before]
        for number, values in results.items():
            part = self.parts[number]
            into = part.of(wanted)
            into.copy_(values.reshape(part.size))
            if rounding:
                got = self.tensors[number]
                into.copy_(torch.where(close(got, into), got, into))
        for got, want in zip(self.bases, wanted, strict=True):
            if not same_bytes(got, want):
                return self._difference(got, want, results)
        return None

    def _difference(self, got: torch.Tensor, want: torch.Tensor, results: dict) -> str:
        differs = got.view(torch.uint8) != want.view(torch.uint8)
        differs = differs.view(got.numel(), got.element_size()).any(1)
        at = int(differs.nonzero()[0])
        inside = "a result" if results else "what was to stay as it is"
        return (
            f"{int(differs.sum())} of {got.numel()} elements of {inside} ({self.layout}) are wrong, "
            f"the first at {at}: got {got[at].item()}, expected {want[at].item()}"
        )

    def poison(self) -> None:
        """What an owner does that has its tensors back: other things."""
        for base in self.bases:
            base.view(torch.uint8).fill_(POISON)
        self.poisoned = True

    def touched(self) -> str | None:
        """Whether somebody wrote here after the owner had it back."""
        if not self.poisoned:
            return None
        for base in self.bases:
            bytes_ = base.view(torch.uint8)
            if not bool((bytes_ == POISON).all()):
                count = int((bytes_ != POISON).sum())
                return f"{count} of {bytes_.numel()} bytes changed after the operation had ended"
        return None


def close(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Where both are the same number, rounded differently."""
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    steps = torch.finfo(got.dtype).eps * 4
    return (got.to(wide) - want.to(wide)).abs() <= steps * want.to(wide).abs()


def carve(
    rng: random.Random,
    allocate: Callable[[int, torch.dtype], torch.Tensor],
    sizes: Sequence[int],
    dtype: torch.dtype,
    contiguous: bool = False,
) -> Memory:
    """One tensor of each size, in one storage or in several, with noise around."""
    kinds = (
        ["apart", "together"]
        if contiguous
        else ["apart", "apart", "together", "strided", "transposed"]
    )
    layout = rng.choice(kinds)
    bases, parts = [], []
    if layout in ("apart", "transposed"):
        for number, size in enumerate(sizes):
            width = next((w for w in (7, 5, 3, 2) if size % w == 0 and size > w), 0)
            if layout == "transposed" and width:
                part = Part(number, (width, size // width), (1, width), 0)
            elif size == 1 and rng.random() < 0.3:
                part = Part(number, (), (), 0)
            else:
                part = Part(number, (size,), (1,), 0)
            bases.append(allocate(size, dtype))
            parts.append(part)
    else:
        step = 2 if layout == "strided" else 1
        at = rng.choice((0, 1, 3))
        for size in sizes:
            parts.append(Part(0, (size,), (step,), at))
            at += size * step + rng.choice((0, 0, 1, 5))
        bases.append(allocate(at + 2, dtype))
    for number, base in enumerate(bases):
        noise = random_bits(number, TILE, dtype)
        if base.numel():
            base.copy_(stretch(noise, base.numel()))
    return Memory(bases, parts, layout)
