"""Tests of CUDA: on a GPU, or on the emulated devices that `./dev test cuda` puts in its place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from alone import alone  # noqa: F401 - a fixture

HERE = Path(__file__).resolve().parent
for folder in (HERE.parent / "pipe", HERE.parent / "rpc", HERE.parent / "c10d_plugin", HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from cuda_workers import CudaGroup, wait_until_lent  # noqa: E402 - only after the path is set
from emulation import EMULATION, findings, seed  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device: ./dev test cuda emulates one")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def no_findings():
    """Fails a test in whose process the emulation saw a race or a use of freed memory."""
    before = findings()
    yield
    if EMULATION:
        torch.cuda.synchronize()
        assert findings() == before, "see the reports on standard error"


@pytest.fixture(params=range(int(os.environ.get("CUDA_TEST_SEEDS", "20")) if EMULATION else 1))
def delays(request):
    """Twenty different sequences of the streams' delays."""
    seed(request.param)
    return request.param


@pytest.fixture(scope="module")
def group():
    """Two workers that lend each other their tensors; several files have workers of another kind."""
    with CudaGroup() as group:
        for rank in range(2):
            group[rank].call(wait_until_lent, f"worker{1 - rank}")
        yield group
        group.end()


@pytest.fixture
def watched(group):
    """The file's workers. A finding of the emulation in one of them fails the test."""
    before = group.all(findings)
    yield group
    assert group.all(findings) == before, group.outputs()


@pytest.fixture
def seeded(watched, delays):
    """The same, with the same sequences of delays."""
    watched.all(seed, delays)
    return watched
