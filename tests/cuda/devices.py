"""The devices that the tests use: two, or the only one twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

FIRST = 0
SECOND = 1 if torch.cuda.device_count() > 1 else FIRST
BOTH = (FIRST, SECOND)
EACH = tuple(dict.fromkeys(BOTH))
#: A tensor on one device of a worker arrives on the other device of the other worker.
CROSSED = {FIRST: SECOND, SECOND: FIRST}

OTHER_CUDA = f"cuda:{SECOND}"
#: Where a Pipe's next partition lives: on the other device, or beside a single one on the host.
NEIGHBOUR = OTHER_CUDA if SECOND != FIRST else "cpu"


def need_two(why: str) -> pytest.MarkDecorator:
    """Skips a test, or one of its parameters, that a single device cannot stand for."""
    return pytest.mark.skipif(SECOND == FIRST, reason=f"needs two CUDA devices: {why}")


def partitions(*places: str) -> Any:
    """The devices of a Pipe as a test's parameter, which needs two devices if neighbours are equal."""
    marks = need_two("the host is beside one") if len(merged(places)) < len(places) else ()
    return pytest.param(places, marks=marks)


def merged(places: Sequence[str]) -> list[str]:
    """The devices of a Pipe's partitions: neighbours on one device are one partition."""
    return [place for place, _ in itertools.groupby(places)]
