"""The listings of the pages: Python is run as printed, C++ stands in a file that is compiled and run."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "rpc"))

from ports import free_port  # noqa: E402
from workers import Workers, run_file  # noqa: E402

# Those of docs/guide/frameworks are run by test_frameworks.py.
PAGES = [ROOT / "README.md"]
PAGES += [page for page in sorted(ROOT.glob("docs/**/*.md")) if page.parent.name != "frameworks"]


def listings(language: str) -> list[tuple[str, str]]:
    """(page, listing), of all pages."""
    return [
        (str(page.relative_to(ROOT)), listing)
        for page in PAGES
        for listing in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)
    ]


# Python.


@dataclass
class Case:
    """What a listing takes for granted, and what must hold after it."""

    page: str
    has: str  # words that only this listing of the page has
    before: str = ""
    after: str = ""
    peer: str = ""  # what the other process does; none without it
    rank: int = 0  # of the listing's process
    instead: tuple[tuple[str, str], ...] = ()  # what this machine has not: accelerators


JOIN = """
import torch, torch.distributed.rpc as rpc, weft
from typing import Any, List
from torch import Tensor, nn
weft.init_rpc("{name}", rank={rank}, world_size=2)
"""
LEAVE = "\nrpc.shutdown()\n"
ALONE = """
import torch, weft
torch.distributed.init_process_group("weft", rank=0, world_size=1)
"""
CLIENT = JOIN.format(name="client", rank=1)
SERVER = JOIN.format(name="server", rank=0)
ENCODER = """
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 2))
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return x @ self.weight * scale
    @torch.jit.export
    def encode(self, x: Tensor, scale: float) -> Tensor:
        return self.forward(x, scale)
encoder = Encoder()
"""
# Served before the group is there, so that nobody calls too early.
SERVE = SERVER.replace(
    "weft.init_rpc",
    ENCODER
    + 'for _ in range(2): weft.publish("encoder", torch.jit.script(encoder))\nweft.init_rpc',
)
WORKER1 = JOIN.format(name="worker1", rank=1) + LEAVE
BETTER = "def better(best, other): return other if best is None else max(best, other)\n"
RANK = """
import torch, torch.distributed as dist, weft
dist.init_process_group("weft")
"""

CASES = [
    Case("README.md", "weft.RemoteModule", peer=WORKER1),
    Case(
        "docs/guide/process_group.md",
        "import torch",
        after="assert tensor.tolist() == [2.0] * 4",
        peer=RANK + "dist.all_reduce(torch.ones(4))",
    ),
    Case(
        "docs/guide/process_group.md",
        "allocate_tensor",
        before=RANK,
        after="dist.destroy_process_group()",
        peer=RANK + "dist.all_reduce(torch.ones(1_000_000)); dist.destroy_process_group()",
    ),
    Case(
        "docs/guide/elastic.md",
        "shrink_group",
        before=RANK
        + "gradients = torch.ones(4); who_died = lambda: 1; agree_on_the_weights = lambda: None",
        after="assert dist.get_world_size() == 1",
        peer=RANK + "dist.destroy_process_group()",
    ),
    Case(
        "docs/guide/elastic.md",
        "next_group",
        before="import torch.distributed as dist, weft",
        after="for number in (1, 2): next_group(dist.HashStore(), number, 0, 1)",
    ),
    Case(
        "docs/guide/published_modules.md",
        "weft.publish",
        before=CLIENT + ENCODER + "x = torch.ones(4, 3)",
        after="assert torch.equal(future.wait(), rref.to_here())" + LEAVE,
        peer=SERVE + LEAVE,
        rank=1,
    ),
    Case(
        "docs/guide/published_modules.md",
        "class Client",
        before=CLIENT,
        after="print(torch.jit.script(Client())(torch.ones(4, 3)))" + LEAVE,
        peer=SERVE + LEAVE,
        rank=1,
    ),
    Case(
        "docs/guide/published_modules.md",
        "fullgraph",
        before=CLIENT + "x = torch.ones(4, 3)",
        after="assert y.shape == (4, 2)" + LEAVE,
        peer=SERVE + LEAVE,
        instead=(("fullgraph=True", 'fullgraph=True, backend="aot_eager"'),),  # inductor takes long
        rank=1,
    ),
    Case(
        "docs/guide/published_modules.md",
        "class Averaged",
        before=RANK + "from torch import Tensor",
        after='print(torch.jit.script(Averaged(torch.nn.Linear(2, 2), "0"))(torch.ones(2)))',
        peer=RANK + 'torch.ops.weft.all_reduce(torch.ones(2), "avg", "0")',
    ),
    Case(
        "docs/guide/remote_module.md",
        "class Model",
        before=CLIENT,
        after="assert Model()(torch.tensor([1, 2])).shape == (2, 10)" + LEAVE,
        peer=SERVER + LEAVE,
        rank=1,
    ),
    Case(
        "docs/guide/remote_module.md",
        "def save",
        after='save(torch.nn.Linear(1, 1)); torch.jit.load("model.pt")',
    ),
    Case("docs/guide/rpc.md", "rpc.init_rpc", after=LEAVE, peer=WORKER1),
    Case(
        "docs/guide/rpc.md",
        "_set_rpc_timeout",
        before=JOIN.format(name="worker0", rank=0) + "x = torch.ones(1)",
        after=LEAVE,
        peer=WORKER1,
    ),
    Case(
        "docs/guide/rpc.md",
        "weft.deadline()",
        before=JOIN.format(name="worker0", rank=0) + BETTER,
        after='assert rpc.rpc_sync("worker0", search, args=([1, 3, 2],), timeout=30) == 3' + LEAVE,
        peer=BETTER + WORKER1,
    ),
    Case(
        "docs/guide/rpc.md",
        "register_function",
        before="import weft\nimport torch.distributed.rpc as rpc\nmodel = abs",
        after=LEAVE,
        peer=CLIENT + LEAVE,
    ),
    Case("docs/guide/rpc.md", "set_device_map", before="import weft"),
    Case(
        "docs/guide/rpc.md",
        "weft.snapshot",
        before=JOIN.format(name="worker0", rank=0)
        + 'load = len; workers = ["worker1"]\n'
        + "model = torch.nn.Linear(200, 200)",
        after=LEAVE,
        peer=WORKER1,
    ),
    Case(
        "docs/guide/pipelines.md",
        "python -m weft.worker",
        after="assert output.shape == (32, 4) and loss.ndim == 0",
        peer=WORKER1,
    ),
    Case(
        "docs/guide/pipelines.md",
        "torch.jit.script(nn.Sequential(",
        before="import torch, weft\nfrom torch import nn\n"
        + JOIN.format(name="driver", rank=0)
        + "inputs, targets = torch.ones(32, 16), torch.zeros(32, dtype=torch.long)\n",
        after="assert loss.ndim == 0; pipe.close()" + LEAVE,
        peer=WORKER1,
    ),
    Case(
        "docs/guide/pipelines.md",
        "torch.jit.script(second)",
        before="import torch, weft\nfrom torch import nn\n"
        + JOIN.format(name="driver", rank=0)
        + "first, second = nn.Linear(4, 4), nn.Linear(4, 2)\n",
        after="assert len(pipe) == 2; pipe.close()" + LEAVE,
        peer=WORKER1,
    ),
    Case(
        "docs/guide/pipelines.md",
        "pipe.record()",
        before=JOIN.format(name="driver", rank=0)
        + 'pipe = weft.Pipe(nn.Sequential(nn.Linear(4, 4), weft.WithDevice(nn.Linear(4, 2), "worker1/cpu")),'
        + ' chunks=2, schedule="1f1b")\n'
        + "inputs, targets = torch.ones(4, 4), torch.zeros(4, dtype=torch.long)\n",
        after="assert timeline.figures.stages == 2; pipe.close()" + LEAVE,
        peer=WORKER1,
    ),
    *(
        Case(
            "docs/guide/pipelines.md",
            first,
            before="import torch, weft\nfrom torch import nn\n"
            + JOIN.format(name="driver", rank=0)
            + "far = weft.WithDevice(nn.Linear(4, 2), 'worker1/cpu')\n"
            + 'pipe = weft.Pipe(nn.Sequential(nn.Linear(4, 4), far), chunks=2, schedule="1f1b")\n'
            + "inputs, targets = torch.ones(4, 4), torch.zeros(4, dtype=torch.long)\n"
            + "optimizer = pipe.optimizer(torch.optim.SGD, lr=0.1)\n"
            + "before = pipe.state_dict()['1.weight'].clone()\n",
            after="assert not torch.equal(pipe.state_dict()['1.weight'], before); pipe.close()"
            + LEAVE,
            peer=WORKER1,
        )
        for first in ("loss.backward()", "dist_autograd.backward(")
    ),
    Case(
        "docs/guide/process_group.md",
        "weft.ddp_hook",
        before=ALONE
        + "import weft\nfrom torch import nn\n"
        + "from torch.nn.parallel import DistributedDataParallel\nmodule = nn.Linear(2, 2)\n",
        after="model(torch.ones(4, 2)).sum().backward()\nassert module.weight.grad is not None"
        + "\ntorch.distributed.destroy_process_group()",
    ),
    Case(
        "docs/guide/pipe_tools.md",
        "balance_by_time",
        before="import torch, weft\nfrom torch import nn\n"
        + 'weft.init_rpc("trainer", rank=0, world_size=1)\n'
        + "model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]); sample = torch.ones(8, 8)",
        after="assert sum(balance) == 4\ntorch.distributed.rpc.shutdown()",
        instead=(('["cuda:0", "cuda:1"]', '["cpu", "cpu"]'),),
    ),
    Case("docs/guide/pipe_tools.md", "weft.compat", after="assert Pipe and skippable"),
    Case(
        "docs/guide/from/tensorpipe.md",
        "weft.init_rpc",
        before="import torch.distributed.rpc as rpc",
        after=LEAVE,
        peer=WORKER1,
    ),
    Case("docs/guide/from/torchgpipe.md", "weft.compat.install", after="assert Pipe"),
    Case(
        "docs/guide/from/torchgpipe.md",
        "GPipe(layers",
        after="import torch\nassert model(torch.ones(16, 2)).shape == (16, 1)",
    ),
    Case(
        "docs/guide/observe.md",
        "_dump_fr_trace_json",
        before=ALONE + "torch.distributed.all_reduce(torch.ones(4))\n",
        after='assert trace["entries"][-1]["profiling_name"] == "nccl:all_reduce"'
        + "\ntorch.distributed.destroy_process_group()",
    ),
    Case(
        "docs/guide/observe.md",
        "weft.trace",
        before=JOIN.format(name="worker0", rank=0)
        + "def train_step():\n"
        + '    rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1))\n',
        after='import os\nassert "weft::rpc worker1.add" in open("step.json").read()\n'
        + 'os.remove("step.json")'
        + LEAVE,
        peer=WORKER1,
    ),
    Case(
        "docs/guide/observe.md",
        "logging.basicConfig",
        after='import weft\nweft.init_rpc("alone", rank=0, world_size=1)\n'
        + "import torch.distributed.rpc as rpc"
        + LEAVE,
    ),
    Case("docs/guide/observe.md", "weft.who_waits", after="assert weft.who_waits() == []"),
    Case(
        "docs/guide/observe.md",
        "weft.metrics()",
        before=JOIN.format(name="worker0", rank=0)
        + 'rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1))\n',
        after='assert figures.peers["worker1"].bytes_sent > 0' + LEAVE,
        peer=WORKER1,
    ),
]
# Run as printed elsewhere.
ELSEWHERE = {
    "docs/guide/quickstart.md": "tests/examples/test_examples.py",
    "docs/guide/pipe.md": "tests/pipe/test_pages.py",
    "docs/guide/pipe_tools.md": "tests/pipe/test_pages.py",
}
IN_TEST_PAGES = ("@skippable", "pipe.record()")


def cases_of(page: str, listing: str) -> list[Case]:
    return [case for case in CASES if case.page == page and case.has in listing]


def test_every_python_listing_is_run():
    for page, listing in listings("python"):
        known = cases_of(page, listing)
        if page in ELSEWHERE and not known:
            assert page != "docs/guide/pipe_tools.md" or any(
                word in listing for word in IN_TEST_PAGES
            )
            continue
        assert len(known) == 1, f"{page}:\n{listing}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.page}-{case.has}")
def test_python_listings_run(case, tmp_path):
    (listing,) = (text for page, text in listings("python") if case in cases_of(page, text))
    for printed, used in case.instead:
        assert printed in listing
        listing = listing.replace(printed, used)
    programs = {case.rank: "\n".join((case.before, listing, case.after)), 1 - case.rank: case.peer}
    where = {"MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    # Processes that have torch already: to import it takes longer than any listing.
    with Workers(0, where) as workers:
        for rank, program in programs.items():
            if program:
                file = tmp_path / f"listing{rank}.py"  # a file: TorchScript reads sources
                file.write_text(program)
                workers.add({"RANK": str(rank)}).start(run_file, str(file))
        for worker in workers:
            worker.result()
            worker.close()
            assert worker.exit_code == 0, worker.output()


# C++.


def squeezed(code: str) -> str:
    """Without comments, line breaks and spaces."""
    return re.sub(r"\s+", "", re.sub(r"//[^\n]*", "", code))


@pytest.mark.parametrize("page", sorted({page for page, _ in listings("cpp")}))
def test_cpp_listings_are_compiled(page):
    compiled = squeezed((ROOT / "tests/jit_ops/snippets_test.cpp").read_text())
    for name, listing in listings("cpp"):
        for paragraph in re.split(r"\n\n|\n…\n", listing) if name == page else []:
            assert squeezed(paragraph) in compiled, paragraph
