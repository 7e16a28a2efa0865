"""The examples in docstrings of public names run, in a group of one worker."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap

import weft
from weft import env, pipe

BEFORE = """
import torch, torch.distributed as dist, torch.distributed.rpc as rpc, weft
from torch import nn
from weft.pipe import NoChunk, place
model, batch, mask = nn.Linear(2, 2), torch.ones(8, 2), torch.ones(2)
"""
JOIN = BEFORE + 'weft.init_rpc("worker0", rank=0, world_size=1)\n'
PUBLISHED = JOIN + 'weft.publish("linear", torch.jit.script(nn.Linear(2, 2)))\n'
LEAVE = "\nrpc.shutdown()\n"
PIPE = JOIN + "class Two(nn.Module):\n    def forward(self, x, y): return x + y\n"
PIPE += "pipe = weft.Pipe(nn.Sequential(Two()), chunks=2)\n"
DDP = "from torch.nn.parallel import DistributedDataParallel\n"
DDP += "dist.init_process_group('weft', rank=0, world_size=1)\nmodule = model\n"
DDP_STEP = "\nmodel(batch).sum().backward()\nassert module.weight.grad is not None\n"
GROUP = BEFORE + "os.environ |= dict(RANK='0', WORLD_SIZE='1')\n"

# What an example takes for granted, where that is more than the group, and what follows it.
AROUND = {
    "RpcBackendOptions": (
        BEFORE,
        "\nassert options.rpc_timeout == 30 and options.request_policy == 'script'" + LEAVE,
    ),
    "ProcessGroupOptions": (GROUP, "\ndist.destroy_process_group()"),
    "ddp_hook": (BEFORE + DDP, DDP_STEP + "dist.destroy_process_group()"),
    "init_rpc": (BEFORE, LEAVE),
    **dict.fromkeys(
        ("call", "call_async", "call_remote", "published", "unpublish", "wait_published"),
        (PUBLISHED, LEAVE),
    ),
    "NoChunk": (PIPE, LEAVE),
    "trace": (
        JOIN + "def train_step(): torch.ones(2).sum()\n",
        "\nos.remove('step.json')" + LEAVE,
    ),
    "dump_flight_record": (JOIN, "\nos.remove('rank_0')" + LEAVE),
    "WithDevice": (BEFORE, ""),
    "place": (BEFORE, ""),
}
# Where the only process meets itself: any free port.
ADDRESS = """
import os, socket
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
"""


def examples() -> list[tuple[str, str]]:
    """(name, code) of the indented block after each `::` in the docstring of a public name."""
    found = []
    for module in (weft, pipe, env):
        names = getattr(module, "__all__", ("table", "unknown"))
        for name in names:
            text = inspect.getdoc(getattr(module, name)) if "__" not in name else None
            for block in re.findall(r"::\n\n((?:(?:    .*)?\n)+)", f"{text}\n"):
                found.append((name, textwrap.dedent(block)))
    return sorted(set(found))


def program(name: str, code: str) -> str:
    """The example with what it takes for granted, for one process."""
    before, after = AROUND.get(name, (JOIN, LEAVE))
    return "\n".join((ADDRESS, before, code.replace("world_size=2", "world_size=1"), after))


def test_examples_run():
    """One after the other in one process: importing torch takes longer than all of them."""
    # The example of weft.pipe.skip is a sketch; tests/pipe/test_skip.py runs such layers.
    whole = [(name, program(name, code)) for name, code in examples() if name != "skip"]
    runner = "import json, sys\nfor name, code in json.load(sys.stdin):\n"
    runner += "    print(name, file=sys.stderr)\n    exec(compile(code, name, 'exec'), {})\n"
    done = subprocess.run(
        [sys.executable, "-c", runner],
        input=json.dumps(whole),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_every_public_function_has_an_example():
    functions = {name for name in weft.__all__ if inspect.isfunction(getattr(weft, name))}
    paths = {"library_path", "cmake_prefix_path"}  # what they return is all there is to them
    classes = {"RemoteModule", "Pipe"}
    assert functions - paths | classes <= {name for name, _ in examples()}
