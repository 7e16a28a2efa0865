"""Legacy imports, each in a process of its own: what they give, twice, and beside a real package."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEGACY = """
import weft.compat
weft.compat.install()
weft.compat.install()
import weft, weft.pipe, weft.pipe.skip
from torch.distributed.pipeline.sync import NoChunk, Pipe, WithDevice
from torch.distributed.pipeline.sync import is_checkpointing, is_recomputing
from torch.distributed.pipeline.sync.checkpoint import is_checkpointing as again
from torch.distributed.pipeline.sync.pipe import Pipe as Deep, WithDevice as DeepDevice
from torch.distributed.pipeline.sync.microbatch import NoChunk as DeepChunk
from torch.distributed.pipeline.sync.batchnorm import DeferredBatchNorm
from torch.distributed.pipeline.sync.skip import Namespace, pop, skippable, stash, verify_skippables
from torch.distributed.pipeline.sync.skip.skippable import Skippable, skippable as deep
from torch.distributed.pipeline.sync.skip.namespace import Namespace as DeepSpace
from torch.distributed.pipeline.sync._balance import balance_by_time
from torch.distributed.pipeline.sync.utils import partition_model
import torch.distributed.pipeline.sync as sync
import torch.distributed.pipeline.sync.skip as skips

assert Pipe is Deep is weft.Pipe is weft.pipe.Pipe is sync.Pipe
assert WithDevice is DeepDevice is weft.WithDevice is weft.pipe.WithDevice
assert NoChunk is DeepChunk is weft.pipe.NoChunk
assert is_checkpointing is again is weft.pipe.is_checkpointing
assert is_recomputing is weft.pipe.is_recomputing
assert skippable is deep is weft.pipe.skip.skippable is skips.skippable
assert Namespace is DeepSpace is weft.pipe.skip.Namespace
assert (stash, pop) == (weft.pipe.skip.stash, weft.pipe.skip.pop)
assert verify_skippables is weft.pipe.skip.verify_skippables
import torch
from torch import nn
assert torch.distributed.pipeline.sync is sync
assert [len(part) for part in partition_model(nn.Sequential(*map(nn.Linear, [1] * 3, [1] * 3)),
                                              [1, 2], ["cpu", "cpu"])] == [1, 2]
try:
    import torch.distributed.pipeline.sync.worker
except ModuleNotFoundError as error:
    assert "weft.compat has no torch.distributed.pipeline.sync.worker" in str(error)
    assert "torch.distributed.pipeline.sync.skip" in str(error), "it lists what there is"
else:
    raise AssertionError
from torch.distributed.pipeline.sync.pipe import PipeSequential
pair = PipeSequential(nn.Identity(), WithDevice(nn.Identity(), "cpu"))
assert pair(torch.ones(1)).tolist() == [1.0]
print("fine")
"""

REAL = """
import sys, types, torch.distributed
real = types.ModuleType("torch.distributed.pipeline")
sys.modules["torch.distributed.pipeline"] = torch.distributed.pipeline = real
import weft.compat
weft.compat.install()
assert sys.modules["torch.distributed.pipeline"] is real and not hasattr(real, "sync")
print("fine")
"""

ON_DISK = """
import pathlib, sys, torch.distributed
package = pathlib.Path(sys.argv[1])
(package / "pipeline" / "sync").mkdir(parents=True)
(package / "pipeline" / "__init__.py").touch()
(package / "pipeline" / "sync" / "__init__.py").write_text("Pipe = 'the real one'")
torch.distributed.__path__.append(str(package))
import weft.compat
weft.compat.install()
from torch.distributed.pipeline.sync import Pipe
assert Pipe == "the real one"
print("fine")
"""


@pytest.mark.parametrize("program", [LEGACY, REAL, ON_DISK], ids=["legacy", "imported", "on disk"])
def test_in_a_process_of_its_own(program, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert (run.returncode, run.stdout) == (0, "fine\n"), run.stderr


def test_without_install_there_is_no_such_package():
    program = "import weft; import torch.distributed.pipeline"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100
    )
    assert run.returncode != 0 and "torch.distributed.pipeline" in run.stderr
