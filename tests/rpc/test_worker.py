"""`python -m weft.worker`: a worker without a program of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from ports import free_port

DRIVER = """
import torch, torch.distributed.rpc as rpc, weft
weft.init_rpc("driver", rank=0, world_size=2)
import shapes  # found by the worker in the folder that it is started in
print(rpc.rpc_sync("stage", shapes.area, args=(2, 3)))
rpc.shutdown()
"""


def test_a_worker_serves_until_the_group_shuts_down(tmp_path):
    (tmp_path / "shapes.py").write_text("def area(a, b):\n    return a * b\n")
    (tmp_path / "driver.py").write_text(DRIVER)
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environment = {**os.environ, **where}
    worker = subprocess.Popen(
        [sys.executable, "-m", "weft.worker", "stage", "--rank", "1"], cwd=tmp_path, env=environment
    )
    try:
        driver = subprocess.run(
            [sys.executable, "driver.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert driver.stdout == "6\n", driver.stderr
        assert worker.wait(60) == 0
    finally:
        worker.kill()


def test_a_worker_without_a_rank_says_what_to_give():
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = subprocess.run(
        [sys.executable, "-m", "weft.worker"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "give --rank and --world-size, or set RANK and WORLD_SIZE" in done.stderr
