"""Published and remote modules at a CUDA device of a Python worker, from a C++ program; and back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_workers import exit_code, leave_and_exit, metric, wait_until_returned
from devices import CROSSED, OTHER_CUDA, SECOND
from emulation import seed
from test_rpc import chain, counted
from test_scripts import Affine
from torch import Tensor, nn
from waiting import wait_until
from workers import Worker, Workers, join

import weft

CLIENT = os.environ.get("CUDA_CPP_CLIENT")

pytestmark = pytest.mark.skipif(CLIENT is None, reason="./dev test cuda builds the C++ program")

# What the Python worker runs.

KEPT: list[Any] = []


class Caller(nn.Module):
    """What C++ loads: a model whose layer lives at the Python worker."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def serve(model: str) -> None:
    module = Affine().to(OTHER_CUDA)
    weft.publish("affine", torch.jit.script(module))
    weft.publish("plain", module)
    weft.publish("seed", seed)
    layer = weft.RemoteModule(f"python/{OTHER_CUDA}", Affine, name="layer")
    layer.remote_parameters()  # it is there
    KEPT.append(layer)
    torch.jit.script(Caller(layer)).save(model)
    weft.publish("ready", seed)  # tells the other that the file is there, too


def call_chained(device: int) -> None:
    """At the other device of the C++ worker."""
    x = counted(device)
    back = weft.call("cpp/chained", x)
    later = [weft.call_async("cpp/chained", x) for _ in range(3)]
    for y in (back, *(call.wait() for call in later)):
        assert y.device.index == device
        assert torch.equal(y.cpu(), chain(torch.arange(1000.0)))


def call_with_twenty_seeds() -> None:
    def lends() -> bool:
        lent = metric("bytes_lent")
        call_chained(0)
        return metric("bytes_lent") >= lent + 4 * 4000

    wait_until(lends, "tensors for the C++ worker are lent")
    lent = metric("bytes_lent")
    for number in range(20):
        seed(number)
        weft.call("cpp/seed", number)
        call_chained(0)
    assert metric("bytes_lent") >= lent + 20 * 4 * 4000  # the arguments
    wait_until_returned()


# The test.


def start_client(workers: Workers, model: Path) -> subprocess.Popen[str]:
    library = Path(weft.library_path()).with_name("libweft_cuda.so")
    return subprocess.Popen(
        [CLIENT, workers.meeting, library, model, str(SECOND)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "WEFT_LOG_LEVEL": "info"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_both(worker: Worker, client: subprocess.Popen[str], model: Path) -> str:
    """What the client says; both end well."""
    try:
        worker.result()
        worker.call(serve, str(model))
        worker.call(call_with_twenty_seeds)
        worker.start(leave_and_exit, True)
        said, _ = client.communicate(timeout=100)
    except BaseException:
        client.kill()
        print(f"{client.communicate()[0]}\nthe C++ worker ended with {client.returncode}")
        raise
    assert client.returncode == 0, said
    assert exit_code(worker) == 0, worker.output()
    return said


def test_a_cpp_worker_calls_and_serves(tmp_path):
    with Workers(1, {"WEFT_LOG_LEVEL": "info"}) as workers:
        workers[0].start(
            join, 0, 2, workers.meeting, name="python", device_maps={"cpp": dict(CROSSED)}
        )
        model = tmp_path / "model.pt"
        said = run_both(workers[0], start_client(workers, model), model)
    assert "C++: 20 seeds" in said
