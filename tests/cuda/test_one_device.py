"""The other tests of this folder as a machine with one GPU runs them: two processes share the device,
and a Pipe has the host beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from devices import need_two
from emulation import EMULATION

HERE = Path(__file__).resolve().parent
LIMIT = 300  # seconds for one file
#: How many sequences of delays each file runs under; its other tests run once.
SEEDS = {
    "test_rpc": 20,
    "test_rpc_ends": 1,
    "test_rpc_failures": 1,
    "test_call_order": 1,
    "test_scripts": 1,
    "test_host_staging": 1,
    "test_pipe": 1,
    "test_pipe_streams": 1,
    "test_pipe_workers": 1,
    "test_cpp_client": 1,
}

pytestmark = [
    pytest.mark.skipif(EMULATION is None, reason="a GPU cannot be hidden from its own tests"),
    need_two("with one they run like this anyway"),
]


@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("module", SEEDS)
def test_on_one_device(module):
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / f"{module}.py"],
        env={**os.environ, "EMULATED_CUDA_DEVICES": "1", "CUDA_TEST_SEEDS": str(SEEDS[module])},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said[-5000:]
    if module != "test_cpp_client":  # which ./dev builds
        assert " passed" in ended.stdout, said[-5000:]
