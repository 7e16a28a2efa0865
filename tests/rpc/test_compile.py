"""torch.compile around calls of remote modules: a graph break each, and no look at Weft's insides."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from module_group import module_group
from torch import nn

group = module_group(2)

CALLS = {
    "forward": lambda module, x: module(x),
    "method": lambda module, x: module.remote.forward(x),
    "future": lambda module, x: module.forward_async(x).wait(),
}


class Calls(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        import weft

        self.how = CALLS[how]
        self.first = nn.Linear(4, 4)
        self.remote = weft.RemoteModule("worker1/cpu", nn.Linear, (4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self.remote, self.first(x)) * 2


def compiled(how: str) -> tuple[list[str], int]:
    """The warnings, and how many graphs were compiled."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]):
        graphs.append(graph)
        return graph

    model, x = Calls(how), torch.ones(2, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = torch.compile(model, backend=backend)(x)
    assert torch.equal(found, model(x))
    return [str(one.message) for one in said], len(graphs)


@pytest.mark.parametrize("how", CALLS)
def test_a_call_of_a_remote_module_is_a_graph_break(group, how):
    assert group[0].call(compiled, how) == ([], 2)


def test_no_import_of_the_compiler_is_needed():
    """It takes as long as that of torch."""
    code = "import torch, weft, sys; print('torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert run.stdout == "False\n", run.stderr
