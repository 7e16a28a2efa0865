"""Docstrings of public names: parameters, errors, an example; which runs, in a group of one worker."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap

import pytest

import weft
from weft import compat, pipe
from weft.pipe import skip

MODULES = (weft, pipe, compat)

BEFORE = """
import torch, torch.distributed as dist, torch.distributed.rpc as rpc, weft, weft.compat
from torch import nn
from weft.pipe import DeferredBatchNorm, NoChunk, balance_by_size, balance_by_time, place
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
    **dict.fromkeys(
        (
            *("WithDevice", "place", "balance_by_time", "balance_by_size", "DeferredBatchNorm"),
            *("GPipe", "install"),
        ),
        (BEFORE, ""),
    ),
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
    for module in MODULES:
        for name in module.__all__:
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


def test_every_public_name_has_an_example():
    """But for functions whose answer is all there is to them."""
    alone = {"library_path", "cmake_prefix_path", "is_checkpointing", "is_recomputing"}
    names = {name for module in MODULES for name in module.__all__} - alone - {"__version__"}
    assert sorted(names - {name for name, _ in examples()}) == []


def test_names_that_are_imported_late_are_listed():
    assert {*weft.__all__, "pipe"} <= set(dir(weft))


def test_help_shows_the_methods_of_a_pipe_with_a_schedule():
    for name in ("step", "optimizer", "load_checkpoint", "close"):
        there = getattr(weft.Pipe._over_workers, name)
        assert inspect.getdoc(getattr(weft.Pipe, name)) == inspect.getdoc(there)
        assert inspect.signature(getattr(weft.Pipe, name)) == inspect.signature(there)


# The layers of `skip` have one example, the module's.
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (*MODULES, skip)
    for name in module.__all__
    if callable(getattr(module, name))
}


def parameters(of: object) -> list[str]:
    """The names of what a function, or the making of an instance, takes; none of C++ functions."""
    try:
        # A class's own __init__: Pipe.__new__ takes more than its subclasses do.
        own = "__init__" in vars(of) if inspect.isclass(of) else False
        found = inspect.signature(of.__init__ if own else of).parameters.values()
    except ValueError:
        return []
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in found if one.kind not in variable and one.name != "self"]


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_parameters_and_errors_are_described(name):
    text = inspect.getdoc(PUBLIC[name]) or ""
    assert text, f"{name} has no docstring"
    described = re.split(r"^(?:Args|Attributes):$", text, flags=re.MULTILINE)[1:]
    missing = [
        one for one in parameters(PUBLIC[name]) if not re.search(rf"\b{one}\b", "".join(described))
    ]
    assert not missing, f"{name}: its docstring does not describe {missing}"
    code = PUBLIC[name].__init__ if inspect.isclass(PUBLIC[name]) else PUBLIC[name]
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):  # made by dataclasses, or in C++
        return
    raises = re.search(r"^ +raise\b", source, re.MULTILINE)
    assert not raises or "\nRaises:\n" in text, f"{name} raises; its docstring does not say what"
