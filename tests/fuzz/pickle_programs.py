"""Pickles made up for the policy ``registered``: whole programs that keep their stack in order, and
changes of others, opcode by opcode."""

from __future__ import annotations

import pickletools
import random
from collections.abc import Callable, Sequence

Random = random.Random
Tokens = list[bytes]

STOP = b"."
EMPTY_VALUES = (b")", b"]", b"}", b"\x8f", b"N", b"\x88", b"\x89")
# What takes and leaves so many values.
OF_ONE = (b"\x85",)
OF_TWO = (b"R", b"\x81", b"b", b"a", b"\x86")
OF_THREE = (b"\x92", b"s", b"\x87")
TO_THE_MARK = (b"t", b"e", b"u", b"\x90", b"\x91", b"1")
# What the policy refuses, or what changes no value.
OTHERS = (b"(", b"0", b"2", b"\x94", b"o", b"Q", b"\x82\x01", b"c", b"i", b"d", b"l", b"\x97")
LONGEST = 1 << 14  # bytes of a pickle, but for repeated parts


def text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def get(index: int) -> bytes:
    return b"h" + bytes([index]) if index < 256 else b"j" + index.to_bytes(4, "little")


def number(rng: Random) -> bytes:
    if rng.random() < 0.7:
        return b"K" + bytes([rng.choice((0, 1, 2, 3, 5, 255))])
    if rng.random() < 0.5:
        return b"J" + rng.choice((-1, 1 << 30, -(1 << 31))).to_bytes(4, "little", signed=True)
    bits = rng.choice((63, 64, 100, 5000, 1 << 15))
    bits_in_bytes = (rng.getrandbits(bits) | 1).to_bytes(bits // 8 + 1, "little")
    return b"\x8b" + len(bits_in_bytes).to_bytes(4, "little") + bits_in_bytes


class Words:
    """The names and texts that pickles are made of."""

    def __init__(self, names: Sequence[tuple[str, str]], texts: Sequence[str]) -> None:
        self.names, self.texts = names, texts

    def name(self, rng: Random) -> bytes:
        return named(*rng.choice(self.names))

    def value(self, rng: Random) -> bytes:
        """A value that needs nothing of the stack."""
        kind = rng.random()
        if kind < 0.25:
            return self.name(rng)
        if kind < 0.45:
            return number(rng)
        if kind < 0.6:
            return text(rng.choice(self.texts))
        if kind < 0.65:
            return b"C\x03abc"
        if kind < 0.75:
            return get(rng.randrange(12))
        return rng.choice(EMPTY_VALUES)

    def any_token(self, rng: Random) -> bytes:
        if rng.random() < 0.5:
            return self.value(rng)
        every = (*OF_ONE, *OF_TWO, *OF_THREE, *TO_THE_MARK, *OTHERS)
        return rng.choice(every)


# --- whole programs ---


def program(rng: Random, words: Words) -> Tokens:
    """Tokens that leave one value: mostly calls, states and items of what there is."""
    tokens: Tokens = []
    depth = 0
    for _ in range(rng.choice((3, 8, 20, 60))):
        chosen = rng.random()
        if depth >= 2 and chosen < 0.35:
            tokens.append(rng.choice(OF_TWO))
            depth -= 1
        elif depth >= 3 and chosen < 0.45:
            tokens.append(rng.choice(OF_THREE))
            depth -= 2
        elif depth >= 1 and chosen < 0.5:
            tokens.append(b"\x85")
        elif chosen < 0.6:
            tokens += _to_the_mark(rng, words, depth)
            depth = max(depth, 1)
        elif depth >= 1 and chosen < 0.7:
            tokens.append(b"\x94")
        elif chosen < 0.85:
            tokens += _made(rng, words)
            depth += 1
        else:
            tokens.append(words.value(rng))
            depth += 1
    if depth == 0:
        tokens.append(b"N")
    return tokens + [b"0"] * max(depth - 1, 0)


def _made(rng: Random, words: Words) -> Tokens:
    """An object: a name, arguments, a call, and often a state."""
    arguments = b"".join(words.value(rng) for _ in range(rng.randrange(4)))
    tokens = [words.name(rng), b"(", arguments, b"t", rng.choice((b"R", b"\x81"))]
    if rng.random() < 0.2:
        tokens[-1:] = [b"}", b"\x92"]
    if rng.random() < 0.4:
        tokens.append(b"\x94")
    if rng.random() < 0.6:
        state = [text(rng.choice(words.texts)) + words.value(rng) for _ in range(rng.randrange(4))]
        as_slots = rng.random() < 0.4
        tokens += [*([b"N"] if as_slots else []), b"}", b"(", *state, b"u"]
        tokens += [*([b"\x86"] if as_slots else []), b"b"]
    return tokens


def _to_the_mark(rng: Random, words: Words, depth: int) -> Tokens:
    items = [words.value(rng) for _ in range(rng.randrange(6))]
    last = rng.choice(TO_THE_MARK)
    if last in (b"t", b"\x91", b"1"):
        # The value replaces the one that it would be on top of.
        return [*([b"0"] if depth else []), b"(", *items, last, *([b"N"] if last == b"1" else [])]
    into = {b"e": b"]", b"u": b"}", b"\x90": b"\x8f"}[last]
    return [*([] if depth else [into]), b"(", *items, last]


# --- changes ---


def tokens_of(pickled: bytes) -> Tokens:
    """The opcodes with their arguments, as far as they can be told apart; no frames, whose lengths change."""
    tokens: Tokens = []
    last = 0
    try:
        for opcode, _, at in pickletools.genops(pickled):
            if at > last:
                tokens.append(pickled[last:at])
                last = at
            if opcode.name == "STOP":
                break
    except Exception:
        tokens.append(pickled[last:])
    return [token for token in tokens if token[:1] != b"\x95"]


def _delete(rng: Random, tokens: Tokens, words: Words) -> Tokens:
    at = rng.randrange(len(tokens))
    return tokens[:at] + tokens[at + rng.randrange(1, 4) :]


def _insert(rng: Random, tokens: Tokens, words: Words) -> Tokens:
    at = rng.randrange(len(tokens) + 1)
    more = program(rng, words) if rng.random() < 0.3 else [words.any_token(rng)]
    return tokens[:at] + more + tokens[at:]


def _replace(rng: Random, tokens: Tokens, words: Words) -> Tokens:
    at = rng.randrange(len(tokens))
    same_kind = text(rng.choice(words.texts)) if tokens[at][:1] in b"X\x8c" else None
    return [*tokens[:at], same_kind or words.any_token(rng), *tokens[at + 1 :]]


def _rename(rng: Random, tokens: Tokens, words: Words) -> Tokens:
    """Another name at one of the places where one is resolved."""
    places = [at for at, token in enumerate(tokens) if token == b"\x93"]
    if not places:
        return _insert(rng, tokens, words)
    at = rng.choice(places)
    # The old name goes: its two texts were on the stack.
    return [*tokens[:at], b"\x93", b"0", words.name(rng), *tokens[at + 1 :]]


def _repeat(rng: Random, tokens: Tokens, words: Words) -> Tokens:
    """A part again and again: deep and shared values come of it."""
    at = rng.randrange(len(tokens))
    part = tokens[at : at + rng.randrange(1, 6)]
    return tokens[:at] + part * rng.choice((2, 3, 30, 400)) + tokens[at:]


def _share(rng: Random, tokens: Tokens, words: Words) -> Tokens:
    """Values that hold the one below twice, level by level, before all others."""
    at = sum(token[:1] == b"\x80" for token in tokens[:1])
    return tokens[:at] + _shared_in_order(rng, words) + tokens[at:]


def _shared_in_order(rng: Random, words: Words) -> Tokens:
    """Two such values as keys or items. Right only where nothing was memoized before."""
    tokens: Tokens = []
    index = 0
    tops: list[int] = []
    names = [words.name(rng) for _ in range(2)]
    levels = rng.choice((3, 40, 60))
    kinds = [rng.randrange(4) for _ in range(levels)]
    for _ in range(2):
        tokens += [b")", b"\x94", b"0"]
        for kind in kinds:
            below = get(index)
            if kind < 2:
                tokens += [below, below, b"\x86"]
            elif kind == 2:
                tokens += [b"(", below, b"\x91"]
            else:
                tokens += [names[0], b"(", below, below, b"t", rng.choice((b"R", b"\x81"))]
            tokens += [b"\x94", b"0"]
            index += 1
        tops.append(index)
        index += 1
    container = rng.choice(([b"\x8f"], [b"]"], [b"}"]))
    keys = [get(top) for top in tops]
    if container == [b"}"]:
        keys = [token for key in keys for token in (key, b"N")]
    last = {b"\x8f": b"\x90", b"]": b"e", b"}": b"u"}[container[0]]
    return [*container, b"(", *keys, last, b"0"]


def _flip(rng: Random, tokens: Tokens, words: Words) -> Tokens:
    at = rng.randrange(len(tokens))
    changed = bytearray(tokens[at])
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return [*tokens[:at], bytes(changed), *tokens[at + 1 :]]


CHANGES: tuple[Callable[[Random, Tokens, Words], Tokens], ...] = (
    *(_delete, _insert, _insert, _insert, _replace, _replace),
    *(_rename, _rename, _repeat, _share, _flip),
)


def mutated(rng: Random, words: Words, corpus: Sequence[bytes]) -> bytes:
    """A new pickle: made from nothing, or from one of the corpus, sometimes with a part of another."""
    if rng.random() < 0.2:
        return b"\x80\x04" + b"".join(program(rng, words)) + STOP
    tokens = tokens_of(rng.choice(corpus))
    if rng.random() < 0.2:
        other = tokens_of(rng.choice(corpus))
        start, end = sorted(rng.randrange(len(other) + 1) for _ in range(2))
        at = rng.randrange(len(tokens) + 1)
        tokens = tokens[:at] + other[start:end] + tokens[at:]
    for _ in range(rng.choice((1, 1, 2, 4))):
        tokens = rng.choice(CHANGES)(rng, [token for token in tokens if token] or [b"N"], words)
        if sum(map(len, tokens)) > LONGEST:
            break
    return b"".join(tokens) + STOP
