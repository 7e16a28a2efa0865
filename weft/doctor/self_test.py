"""The check that lets two processes of this machine call each other."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from weft.doctor.finding import Finding, fail, ok

SECONDS = 30
PROGRAM = """
import sys, torch, torch.distributed.rpc as rpc, weft
rank, path = int(sys.argv[1]), sys.argv[2]
rpc.init_rpc(f"doctor{rank}", backend=rpc.BackendType.WEFT, rank=rank, world_size=2,
             rpc_backend_options=weft.RpcBackendOptions(init_method="file://" + path, rpc_timeout=30))
if rank == 0:
    assert rpc.rpc_sync("doctor1", torch.add, args=(torch.ones(1), 1)).item() == 2
rpc.shutdown()
"""


def run() -> Iterator[Finding]:
    """Two processes that call each other."""
    deadline = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        workers = [_start_worker(rank, store) for rank in range(2)]
        try:
            errors = [
                worker.communicate(timeout=max(0, deadline - time.monotonic()))[1]
                for worker in workers
            ]
        except subprocess.TimeoutExpired:
            yield fail(f"two workers did not finish within {SECONDS} s")
            return
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    failed = [error for worker, error in zip(workers, errors, strict=True) if worker.returncode]
    if failed:
        yield fail(f"two workers could not call each other:\n{failed[0]}")
    else:
        yield ok("two workers called each other")


def _start_worker(rank: int, store: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(rank), store],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
