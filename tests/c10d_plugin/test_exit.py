"""Programs that end while callbacks of messages still run, or wait for messages that never come."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
import weft

meeting, rank, case = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("weft", init_method=meeting, rank=rank, world_size=2)
tensor = torch.zeros(4)

def slow(future):
    print("callback begins", flush=True)
    for _ in range(1000):
        time.sleep(0.001)  # asks for the GIL again and again
    print("callback ends", flush=True)

def destroy(future):
    dist.destroy_process_group()
    slow(future)

if rank == 0 and case != "nothing comes":
    dist.send(torch.ones(4), 1)
elif rank == 1:
    future = dist.irecv(tensor, 0).get_future().then(destroy if case == "it destroys" else slow)
    if case == "it runs":
        time.sleep(0.3)
    elif case == "it destroys":
        while dist.is_initialized():
            time.sleep(0.01)
    elif case in ("it begins", "destroyed before"):
        while not tensor.any():  # until the message is there: rank 0 sends it to a member
            time.sleep(0.001)
        if case == "destroyed before":
            dist.destroy_process_group()
if rank == 0:
    time.sleep(1)
"""


@pytest.mark.parametrize(
    "case", ["it runs", "nothing comes", "it destroys", "destroyed before", "it begins"]
)
def test_the_exit_waits_for_the_callbacks_of_messages(tmp_path, case):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"file://{tmp_path}/meeting", str(rank), case],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for rank, process in enumerate(ranks):
            out, error = process.communicate(timeout=60)
            assert process.returncode == 0, (rank, out, error)
            assert out == ("callback begins\ncallback ends\n" if rank == 1 else ""), (out, error)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
