"""Three workers for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from workers import Group


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    """Worker 0 is the driver."""
    with Group(3) as workers:
        yield workers
        workers.shutdown()
