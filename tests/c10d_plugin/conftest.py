"""Test modules here are importable by their file's name, in pytest's process and in the workers."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parent / "rpc"):  # the worker processes are those of the RPC tests
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import pytest  # noqa: E402
from ranks import PATHS, Ranks, path_of_default_group  # noqa: E402


@pytest.fixture(
    scope="module", params=[(2, "shared memory"), (3, "shared memory"), (3, "messages")]
)
def ranks(request):
    """A group of two or three, through shared memory or without it."""
    size, path = request.param
    with Ranks(size, PATHS[path]) as made:
        assert made.all(path_of_default_group) == [path] * size
        yield made
