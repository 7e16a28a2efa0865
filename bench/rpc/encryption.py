"""TLS and checksums beside plain TCP, each ratio with its aim. ``./dev bench rpc --encryption``.

Over TCP Weft's bytes have checksums or are encrypted. Plain is a build of Weft that leaves the
checksums out, which ``--plain FOLDER`` names; without it TLS is compared with checksums.

A large message must be encrypted and decrypted. What that costs, at the rates that ``openssl speed``
shows in the same round, counts to the time that TLS may take.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.report import Figures
from bench.rpc import namespaces
from bench.rpc.pair import BUILD_MARK, Pair

CHECKSUMS, TLS = "WEFT_TCP", "WEFT_TLS"
METRICS = ("sync_add", "python_call", "send_16m")
SMALL = {"rpc_sync add": "rpc_sync add p50 us", "empty function": "python function p50 us"}
LARGE = "send 16 MiB gb_s"
SLOWER = 1.2  # TLS: times the time, at most
SPEED = 0.9  # checksums: of the speed, at least
_BYTES = 16 << 20


@dataclass
class Row:
    """Times of both sides over all rounds."""

    name: str
    base: list[float]
    ours: list[float]
    aim: float

    def __str__(self) -> str:
        """A line of the table, bold where the aim is missed."""
        ratios = [b / a for a, b in zip(self.base, self.ours, strict=True)]
        ratio = statistics.median(ratios)
        shown = f"{ratio:.2f}" if ratio <= self.aim else f"**{ratio:.2f}**"
        return (
            f"| {self.name} | {statistics.median(self.base):,.3g} "
            f"| {statistics.median(self.ours):,.3g} "
            f"| {shown} ({min(ratios):.2f} to {max(ratios):.2f}) | at most {self.aim:.2f} |"
        )


def cipher_ms() -> float:
    """What one core needs to encrypt and decrypt 16 MiB with AES-128-GCM."""
    return sum(_BYTES / _speed(*way) for way in ((), ("-decrypt",))) * 1e3


def _speed(*way: str) -> float:
    words = ["openssl", "speed", "-elapsed", "-seconds", "1", "-bytes", "16384", *way]
    done = subprocess.run([*words, "-evp", "aes-128-gcm"], capture_output=True, text=True)
    found = re.search(r"^AES-128-GCM\s+([\d.]+)k", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"openssl speed said nothing of its rate: {done.stderr.strip()}")
    return float(found[1]) * 1e3


def _large_ms(figures: Figures) -> float:
    return _BYTES / figures[LARGE] / 1e6


def _rows(sides: dict[str, list[Figures]], base: str, ciphers: list[float]) -> list[Row]:
    def column(side: str, value: Callable[[Figures], float]) -> list[float]:
        return [value(figures) for figures in sides[side]]

    def small(side: str, aim: float) -> list[Row]:
        return [
            Row(
                f"{side}: {name}, p50, us",
                *(column(one, lambda f, figure=figure: f[figure]) for one in (base, side)),
                aim,
            )
            for name, figure in SMALL.items()
        ]

    plain = column(base, _large_ms)
    lower = [time + cipher for time, cipher in zip(plain, ciphers, strict=True)]
    rows = small(TLS, SLOWER)
    rows.append(Row(f"{TLS}: 16 MiB, ms; base + cipher", lower, column(TLS, _large_ms), SLOWER))
    if base != CHECKSUMS:
        rows += small(CHECKSUMS, 1 / SPEED)
        rows.append(Row(f"{CHECKSUMS}: 16 MiB, ms", plain, column(CHECKSUMS, _large_ms), 1 / SPEED))
    return rows


def table(plain: Path | None, rounds: int, hosts: namespaces.TwoHosts | None) -> str:
    """Measures the sides in turns and says what was seen, in Markdown."""
    base = CHECKSUMS if plain is None else f"{CHECKSUMS}{BUILD_MARK}{plain}"
    names = list(dict.fromkeys((base, CHECKSUMS, TLS)))
    pairs = {name: Pair(name, hosts) for name in names}
    sides: dict[str, list[Figures]] = {name: [] for name in names}
    ciphers = []
    try:
        for number in range(rounds):
            ciphers.append(cipher_ms())
            figures: dict[str, Figures] = {name: {} for name in names}
            for metric in METRICS:
                # Who goes first changes, so that none always finds warm caches.
                for step in range(len(names)):
                    name = names[(number + step) % len(names)]
                    figures[name].update(pairs[name].measure(metric))
            for name in names:
                sides[name].append(figures[name])
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    finally:
        for pair in pairs.values():
            pair.close()
    lines = [
        f"| measured | {'checksums' if plain is None else 'plain'} | it | ratio of times | aim |",
        "|---|---|---|---|---|",
        *map(str, _rows(sides, base, ciphers)),
        "",
        f"Encrypting and decrypting 16 MiB: {statistics.median(ciphers):.1f} ms (openssl speed).",
    ]
    return "\n".join(lines)
