"""Every path is tested by something that notices a forgotten event.

Each row names a function that orders streams, or keeps memory until they have used it, and a test. The
emulated runtime leaves out what that function, or what it calls, asks it to wait for
(EMULATED_CUDA_FORGET); a function of Python's does nothing (FORGET_IN_PYTHON, forgetting.py). The test,
which passes otherwise, must then fail within its seeds: by a wrong number, or by a report of accesses
without order. No other failure counts, except where a row says which.
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
from devices import need_two
from emulation import EMULATION

import weft

HERE = Path(__file__).resolve().parent
LIBRARIES = [Path(weft.library_path()).resolve().parent, Path(torch.__file__).parent / "lib"]

FOUND = 66  # how a process ends in which the emulation found something
LIMIT = 600  # seconds for one test: what ends by the clock has noticed nothing

pytestmark = [
    pytest.mark.skipif(EMULATION is None, reason="only an emulated device can forget"),
    need_two("the tests that must notice are chosen for two"),
]


#: What a test says that has noticed.
RACE, NUMBER = r"emulated CUDA: race: ", r"AssertionError(?!: not within)"


class Mutation(NamedTuple):
    name: str
    library: str
    function: str
    test: str  # file, and what pytest's -k takes
    sign: str = f"{RACE}|{NUMBER}"


RPC, CUDA, PYTHON = "libweft.so", "libweft_cuda.so", "Python"
#: Torch's allocator: a block that record_stream() has been told of is free when an event says so.
ALLOCATOR = ("libc10_cuda.so", "DeviceCachingAllocator::process_events")
PATHS = [
    Mutation("RPC by IPC", CUDA, "IpcMemory::copyFrom", "test_rpc awaited_on_their_streams"),
    Mutation(
        "RPC by IPC, loans", CUDA, "IpcMemory::copyFrom", "test_rpc arguments_may_be_overwritten"
    ),
    Mutation("RPC to itself", RPC, "AnswerReader::completeOwn", "test_rpc itself_are_ordered"),
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
    Mutation("collectives, memory of inputs", *ALLOCATOR, "test_process_group order_on_streams"),
    Mutation(
        "DDP",
        CUDA,
        "Staging::beginReading",
        "test_process_group ddp",
        r"FAILED",  # DDP first exchanges numbers of its own: wrong ones end it in many ways
    ),
    Mutation("FSDP2", CUDA, "Staging::beginReading", "test_process_group fsdp"),
    Mutation(
        "send and recv",
        CUDA,
        "DeviceMessages::Receiver::receive",
        "test_process_group messages_that_are_late",
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
        "Pipe, memory that copies read",
        *ALLOCATOR,
        "test_pipe_streams test_memory_lives_until_its_copies",
    ),
    Mutation(
        "pipelines over workers",
        RPC,
        "(anonymous namespace)::deliver",
        "test_pipe_workers training_is_as",
    ),
    Mutation(
        "pipelines over workers, layers",
        PYTHON,
        "weft.pipe._workers.part.settle",
        "test_pipe_workers layers_on_a_device",
    ),
    Mutation(
        "pipelines over workers, targets",
        PYTHON,
        "weft.pipe._workers.calls.settle",
        "test_pipe_workers targets_on_a_device",
    ),
]


def places_of(library: str, function: str) -> list[str]:
    """Where the function, and what the compiler made of its parts, lie in the library."""
    path = next(folder / library for folder in LIBRARIES if (folder / library).exists())
    listed = subprocess.run(
        ["nm", "-CS", "--defined-only", path], capture_output=True, text=True, check=True
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


def forgetting(path: Mutation) -> dict[str, str]:
    """The environment in which it is forgotten."""
    if path.library == PYTHON:
        return {"FORGET_IN_PYTHON": path.function}
    places = ",".join(places_of(path.library, path.function))
    return {"EMULATED_CUDA_FORGET": f"{path.library}:{places}"}


@pytest.mark.timeout(LIMIT + 300)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_a_forgotten_event_fails_the_test(path, tmp_path):
    forgotten = tmp_path / "forgotten"
    module, _, chosen = path.test.partition(" ")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-xq", "--tb=short", "-o", f"timeout={LIMIT}", "-k", chosen,
         HERE / f"{module}.py"],
        env={**os.environ, **forgetting(path), "EMULATED_CUDA_FORGOTTEN": str(forgotten)},
        capture_output=True,
        text=True,
        timeout=LIMIT + 200,
        check=False,
    )  # fmt: skip
    said = ended.stdout + ended.stderr
    assert forgotten.exists(), f"nothing was forgotten\n{said}"
    assert ended.returncode in (pytest.ExitCode.TESTS_FAILED, FOUND), said[-3000:]
    assert re.search(path.sign, said), said[-3000:]
    assert not re.search(r"TimeoutError: |Timeout >|\+ Timeout \+", said), said[-3000:]
