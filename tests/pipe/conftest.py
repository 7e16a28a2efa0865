"""What the tests of pipes share: a group of this process alone, and one of three workers."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

from alone import alone  # noqa: F401 - a fixture

HERE = Path(__file__).resolve().parent
# tests/rpc has the worker processes of the pipelines over workers.
for folder in (str(HERE.parent / "rpc"), str(HERE)):
    if folder not in sys.path:
        sys.path.insert(0, folder)

from module_group import module_group  # noqa: E402

group = module_group(3)  # worker 0 is the driver

# Optimizers import torch._dynamo, which takes each new process long on a busy machine.
multiprocessing.get_context("forkserver").set_forkserver_preload(
    ["torch", "torch.distributed.rpc", "torch._dynamo", "weft"]
)
