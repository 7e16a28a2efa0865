"""One group for all tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from workers import Group


def module_group(size: int, prepare: Callable[[], object] | None = None, **options: Any) -> Any:
    """The module's fixture ``group``, of workers that init_rpc gets these options.

    Each calls ``prepare`` first.
    """

    @pytest.fixture(scope="module")
    def group() -> Iterator[Group]:
        with Group(size, **options) as members:
            if prepare is not None:
                for worker in members:
                    worker.call(prepare)
            yield members
            members.shutdown()

    return group
