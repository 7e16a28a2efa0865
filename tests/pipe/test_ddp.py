"""DistributedDataParallel around a Pipe, in two processes: gradients are the mean over both, each
bucket is reduced and each parameter's hook called once per mini-batch, in every checkpoint mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

PROGRAM = """
import sys, tempfile, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import weft
from pipe_models import MODES, assert_same, gradients, make_pipe, plain_copy
from torch import nn

rank, store = int(sys.argv[1]), sys.argv[2]
weft.init_rpc("alone", rank=0, world_size=1, init_method="file://" + tempfile.mktemp())
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)

def model():
    torch.manual_seed(0)
    # One weight of 64 KiB and more, and small ones.
    return nn.Sequential(nn.Linear(16, 128), nn.Tanh(), nn.Linear(128, 128), nn.Linear(128, 4))

def check(mode):
    torch.manual_seed(5)
    halves = torch.randn(12, 16).chunk(2)
    whole = model()
    pipe = make_pipe(model(), "threads", chunks=3, checkpoint=mode)
    ddp = DistributedDataParallel(pipe)
    reduced, hooked = [], []

    def reduce(_state, bucket):
        reduced.append(bucket.index())
        return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(
            lambda future: future.value()[0])

    ddp.register_comm_hook(None, reduce)
    for k, parameter in enumerate(pipe.parameters()):
        parameter.register_hook(lambda grad, k=k: hooked.append(k))
    for step in range(4):
        ddp.zero_grad()
        reduced.clear(), hooked.clear()
        ddp(halves[rank]).local_value().square().sum().backward()
        assert reduced and sorted(reduced) == list(range(len(reduced))), reduced
        assert sorted(hooked) == list(range(6)), hooked
    whole.zero_grad()
    (sum(whole(half).square().sum() for half in halves) / 2).backward()
    assert_same(gradients(pipe), gradients(whole), atol=1e-4, rtol=1e-4)

    ddp.zero_grad()  # two mini-batches before one reduction
    with ddp.no_sync():
        reduced.clear()
        ddp(halves[rank][:3]).local_value().square().sum().backward()
        assert reduced == []
    ddp(halves[rank][3:]).local_value().square().sum().backward()
    assert_same(gradients(pipe), gradients(whole), atol=1e-4, rtol=1e-4)
for mode in MODES:
    check(mode)
dist.barrier()
dist.destroy_process_group()
print("fine", flush=True)
"""


def test_two_processes_in_every_mode(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{HERE}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert all(output.endswith("fine\n") for output in outputs), "\n".join(outputs)
