"""One group for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from workers import Group


def module_group(size: int, **options: Any) -> Any:
    """The module's fixture ``group``, of workers that init_rpc gets these options."""

    @pytest.fixture(scope="module")
    def group() -> Iterator[Group]:
        with Group(size, **options) as members:
            yield members
            members.shutdown()

    return group
