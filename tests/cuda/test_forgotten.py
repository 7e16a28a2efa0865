"""Every path is tested by something that notices a forgotten event.

Each row names a function of Weft's that orders streams, and a test. The emulated runtime leaves out
what that function, or what it calls, asks it to wait for (EMULATED_CUDA_FORGET); the test, which passes
otherwise, must then fail within its seeds: by a wrong number, or by a report of accesses without order.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from emulation import EMULATION

import weft

HERE = Path(__file__).resolve().parent
LIBRARIES = Path(weft.library_path()).resolve().parent

LIMIT = 600  # seconds for one test: what ends by the clock has noticed nothing

pytestmark = [
    pytest.mark.skipif(EMULATION is None, reason="only an emulated device can forget"),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


class Mutation(NamedTuple):
    name: str
    library: str
    function: str
    test: str  # file, and what pytest's -k takes


RPC, CUDA = "libweft.so", "libweft_cuda.so"
PATHS = [
    Mutation("RPC by IPC", CUDA, "IpcMemory::copyFrom", "test_rpc awaited_on_their_streams"),
    Mutation(
        "RPC, calls of one caller",
        RPC,
        "CallOrder::follow",
        "test_call_order is_there_for_the_next_one",
    ),
    Mutation(
        "RPC, small tensors packed",
        RPC,
        "HostStaging::awaitFirst",
        "test_host_staging large_and_small and SHARED",
    ),
    Mutation(
        "RPC, chunks sent",
        RPC,
        "HostStaging::waitBeyond",
        "test_host_staging large_and_small and SHARED",
    ),
    Mutation(
        "RPC, chunks received",
        RPC,
        "DeviceArrivals::finish",
        "test_host_staging large_and_small and SHARED",
    ),
    Mutation("RPC, scripts", RPC, "(anonymous namespace)::settle", "test_scripts in_other_threads"),
    Mutation(
        "RPC, scripts that fork",
        RPC,
        "defaultStreamsAfter",
        "test_scripts test_functions and of_forks",
    ),
    Mutation(
        "RPC, results of forks",
        RPC,
        "(anonymous namespace)::settle",
        "test_scripts results_of_forks",
    ),
    Mutation("published modules", CUDA, "IpcMemory::copyFrom", "test_scripts test_published"),
    Mutation("remote modules", CUDA, "IpcMemory::copyFrom", "test_scripts test_remote_modules"),
    Mutation(
        "remote modules, training", RPC, "CallOrder::follow", "test_call_order before_they_are_used"
    ),
    Mutation("collectives", CUDA, "Staging::beginReading", "test_process_group order_on_streams"),
    Mutation(
        "collectives, inputs", CUDA, "DeviceQueue::Task::run", "test_process_group order_on_streams"
    ),
    Mutation(
        "collectives, results",
        CUDA,
        "DeviceWork::wait",
        "test_process_group order_on_streams",
    ),
    Mutation("collectives, futures", CUDA, "DeviceWork::fill", "test_process_group future"),
    Mutation("DDP", CUDA, "Staging::beginReading", "test_process_group ddp"),
    Mutation("FSDP2", CUDA, "Staging::beginReading", "test_process_group fsdp"),
    Mutation(
        "send and recv",
        CUDA,
        "DeviceMessages::Receiver::receive",
        "test_process_group order_on_streams",
    ),
    Mutation(
        "send and recv, slots",
        CUDA,
        "DeviceMessages::Sender::send",
        "test_process_group slot_is_filled",
    ),
    Mutation("Pipe, copies begin", RPC, "DeviceCopier::send", "test_pipe training_under_twenty"),
    Mutation("Pipe, copies end", RPC, "DeviceCopier::wait", "test_pipe training_under_twenty"),
    Mutation("Pipe, skips", RPC, "DeviceCopier::wait", "test_pipe skips_under_twenty"),
    Mutation(
        "Pipe, other streams",
        RPC,
        "PipelineNode::apply",
        "test_pipe_streams other_streams_under_twenty",
    ),
    Mutation(
        "pipelines over workers",
        RPC,
        "(anonymous namespace)::deliver",
        "test_pipe_workers training_is_as",
    ),
]


def places_of(library: str, function: str) -> list[str]:
    """Where the function, and what the compiler made of its parts, lie in the library."""
    listed = subprocess.run(
        ["nm", "-CS", "--defined-only", LIBRARIES / library],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = []
    for line in listed.splitlines():
        fields = line.split(maxsplit=3)
        if len(fields) < 4 or fields[2] not in "tTwW":
            continue
        if f"::{function}(" in fields[3]:
            start, size = int(fields[0], 16), int(fields[1], 16)
            found.append(f"{start:x}-{start + size:x}")
    assert found, f"{library} has no {function}"
    return found


@pytest.mark.timeout(LIMIT + 300)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_forgotten_event_fails_the_test(path, tmp_path):
    forgotten = tmp_path / "forgotten"
    module, _, chosen = path.test.partition(" ")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-xq", "--tb=line", "-o", f"timeout={LIMIT}", "-k", chosen,
         HERE / f"{module}.py"],
        env={
            **os.environ,
            "EMULATED_CUDA_FORGET": f"{path.library}:" + ",".join(places_of(path.library, path.function)),
            "EMULATED_CUDA_FORGOTTEN": str(forgotten),
        },
        capture_output=True,
        text=True,
        timeout=LIMIT + 200,
        check=False,
    )  # fmt: skip
    assert forgotten.exists(), f"nothing was forgotten\n{ended.stdout}"
    assert re.search(r"\b1 (failed|error)\b", ended.stdout), ended.stdout[-3000:]
    assert not re.search(r"TimeoutError: |Timeout >|\+ Timeout \+", ended.stdout), ended.stdout[
        -3000:
    ]
