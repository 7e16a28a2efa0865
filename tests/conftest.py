"""Lets every test module, and the worker processes that inherit sys.path, import tests/support, and
runs each file's tests in a random order where `--shuffle SEED` is given: a test that needs another
one before it then fails."""

import random
import sys
from pathlib import Path

import pytest

SUPPORT = str(Path(__file__).resolve().parent / "support")
if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="each file's tests in random order"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("shuffle")
    return None if seed is None else f"each file's tests in the order of seed {seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("shuffle")
    if seed is None:
        return
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = random.Random(seed)
    for tests in files.values():
        order.shuffle(tests)
    items[:] = [test for tests in files.values() for test in tests]
