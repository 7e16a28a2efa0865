"""The emulation finds what it is there to find: a forgotten event, and memory used too late."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from emulation import EMULATION

pytestmark = pytest.mark.skipif(EMULATION is None, reason="not on an emulated device")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import torch\n" + program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


ADD_ON_TWO_STREAMS = """
side = torch.cuda.Stream()
ones = torch.ones(1000, device="cuda")
for _ in range(20):
    {wait}
    with torch.cuda.stream(side):
        twos = ones + 1
    {wait_back}
    threes = twos + 1
    twos.record_stream(side)
    print(int(threes.sum()))
"""


def test_streams_that_wait_give_the_right_sum():
    program = ADD_ON_TWO_STREAMS.format(
        wait="side.wait_stream(torch.cuda.current_stream())",
        wait_back="torch.cuda.current_stream().wait_stream(side)",
    )
    ended = run(program)
    assert ended.returncode == 0, ended.stderr
    assert set(ended.stdout.split()) == {"3000"}


def test_a_forgotten_event_gives_a_wrong_sum_and_a_report():
    ended = run(ADD_ON_TWO_STREAMS.format(wait="pass", wait_back="pass"))
    assert ended.returncode == 66
    assert "race: read after write" in ended.stderr
    assert set(ended.stdout.split()) != {"3000"}


def test_memory_given_back_too_early_is_reported():
    """Without record_stream the allocator gives the block away while the other stream reads it."""
    ended = run(
        """
side = torch.cuda.Stream()
source = torch.ones(1000, device="cuda")
target = torch.zeros(1000, device="cuda")
torch.cuda.synchronize()
with torch.cuda.stream(side):
    target.copy_(source, non_blocking=True)
del source
torch.zeros(1000, device="cuda")
"""
    )
    assert ended.returncode == 66
    assert "race: write after read" in ended.stderr


def test_an_operator_that_uses_freed_memory_is_an_error_with_both_stacks():
    """It would compute at once, so it is told before it reads."""
    ended = run(
        """
import ctypes
x = torch.ones(1 << 20, device="cuda")
torch.cuda.synchronize()
assert ctypes.CDLL("libcudart.so.13").cudaFree(ctypes.c_void_p(x.data_ptr())) == 0
x + 1
"""
    )
    assert ended.returncode == 66
    assert "illegal memory access" in ended.stderr
    for said in (
        "use after free: a kernel's read",
        "the use:",
        "it was freed by:",
        "allocated by:",
    ):
        assert said in ended.stderr


def test_a_process_sees_the_devices_that_it_is_told():
    program = "print(torch.cuda.device_count(), torch.cuda.get_device_name(0))"
    ended = run(program, EMULATED_CUDA_DEVICES="3", CUDA_VISIBLE_DEVICES="2,0")
    assert ended.stdout.split() == ["2", "Emulated", "device", "2"], ended.stderr
    assert run("print(torch.cuda.is_available())", CUDA_VISIBLE_DEVICES="").stdout == "False\n"


def test_a_kernel_without_a_form_is_an_error():
    ended = run("torch.nn.LSTM(2, 2).cuda()(torch.zeros(1, 1, 2, device='cuda'))")
    assert ended.returncode == 1
    assert "_thnn_fused_lstm_cell has no kernel for the CPU" in ended.stderr


def test_out_of_memory_is_torchs_error():
    program = "torch.empty(1 << 20, device='cuda')"
    ended = run(program, EMULATED_CUDA_MEMORY=str(1 << 21))
    assert "torch.OutOfMemoryError" in ended.stderr
    assert run(program).returncode == 0


def test_a_copy_that_fails_is_an_error():
    ended = run("torch.ones(4).to('cuda'); torch.ones(4).to('cuda')", EMULATED_CUDA_FAIL_COPY="2")
    assert ended.returncode == 1
    assert "unknown error" in ended.stderr


def test_random_numbers_follow_the_devices_generator():
    ended = run(
        """
def draw():
    return torch.cat([torch.randn(9, device="cuda"),
                      torch.nn.functional.dropout(torch.ones(9, device="cuda"))])
torch.manual_seed(3)
state = torch.cuda.get_rng_state()
first, second = draw(), draw()
assert not torch.equal(first, second)
torch.cuda.set_rng_state(state)
assert torch.equal(first, draw())
torch.manual_seed(4)
assert not torch.equal(first, draw())
"""
    )
    assert ended.returncode == 0, ended.stderr
