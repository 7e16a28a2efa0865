"""The waits in call_tensors' backward: many at once, few threads, failures that hold nobody up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor, nn
from waiting import takes
from workers import Group

import weft

OPS = torch.ops.weft
X = torch.ones(1, 2)
SLOW = 4.0  # seconds

# What workers run.


class Doubler(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        takes(SLOW)
        return gradient


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return SlowBackward.apply(x)


def prepare(threads: int) -> None:
    """Before the process first uses its inter-op pool."""
    torch.set_num_interop_threads(threads)
    weft.publish("double", torch.jit.script(Doubler()))
    weft.publish("slow", Slow())


def call(worker: str, name: str, x: Tensor, timeout: float = 20.0) -> Tensor:
    return OPS.call_tensors(worker, name, [x], [x], timeout=timeout)[0]


def backward(worker: str, depth: int, timeout: float = 20.0) -> None:
    with dist_autograd.context() as context:
        x = y = X.clone().requires_grad_()
        for _ in range(depth):
            y = call(worker, "double", y, timeout)
        dist_autograd.backward(context, [y.sum()])
        found = dist_autograd.get_gradients(context)[x]
    assert torch.equal(found, torch.full_like(X, 2.0**depth)), found


def at_once(worker: str, threads: int, timeout: float = 20.0) -> list[str]:
    """The errors of so many threads' backwards."""
    errors = []

    def run() -> None:
        try:
            for depth in (1, 2, 3) * 5:
                backward(worker, depth, timeout)
        except (RuntimeError, AssertionError) as error:
            errors.append(str(error))

    running = [threading.Thread(target=run) for _ in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return errors


def give_up() -> str:
    """worker1 is too slow; until the first call's backward worker0 does not answer the last's."""
    try:
        with dist_autograd.context() as context:
            x = X.clone().requires_grad_()
            y = call("worker1", "slow", call("worker0", "double", x), timeout=1.0)
            dist_autograd.backward(context, [call("worker0", "double", y).sum()])
    except RuntimeError as error:
        return str(error)
    return "gradients came in time"


# In a process of its own: torch's pool is there before Weft is.
TOO_LATE = """
import torch
torch.set_num_interop_threads(1)

def body(x: torch.Tensor) -> torch.Tensor:
    return x + 1

@torch.jit.script
def forked(x: torch.Tensor) -> torch.Tensor:
    return torch.jit.wait(torch.jit.fork(body, x))

forked(torch.ones(1))
import os, time
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import weft

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
options = weft.RpcBackendOptions(init_method="file://" + os.path.abspath("store"))
rpc.init_rpc("worker0", backend=rpc.BackendType.WEFT, rank=0, world_size=1,
             rpc_backend_options=options)
weft.publish("identity", torch.jit.script(torch.nn.Identity()))
x = torch.ones(1, requires_grad=True)
began = time.monotonic()
with dist_autograd.context() as context:
    (y,) = torch.ops.weft.call_tensors("worker0", "identity", [x], [x])
    try:
        dist_autograd.backward(context, [y.sum()])
    except RuntimeError as error:
        print(error)
rpc.shutdown()
print("seconds", time.monotonic() - began)
"""


def test_one_thread_is_enough():
    with Group(2) as group:
        for worker in group:
            worker.call(prepare, 1)
        for depth in (1, 4):
            group[1].call(backward, "worker0", depth)
        group.shutdown()


def test_more_backwards_than_threads():
    with Group(2) as group:
        for worker in group:
            worker.call(prepare, 2)
        assert group[1].call(at_once, "worker0", 5) == []
        # No timeout, and nobody waits forever.
        assert group[1].call(at_once, "worker0", 5, 0.0) == []
        group.shutdown()


def test_workers_that_wait_for_each_other():
    with Group(2) as group:
        for worker in group:
            worker.call(prepare, 1)
        group[0].start(at_once, "worker1", 3)
        group[1].start(at_once, "worker0", 3)
        assert [worker.result() for worker in group] == [[], []]
        group.shutdown()


def test_a_failed_backward_leaves_no_call_in_flight():
    with Group(3) as group:
        for worker in group:
            worker.call(prepare, 2)
        text = group[2].call(give_up)
        assert "no gradients came back from slow.forward at worker 'worker1' within 1 s" in text
        began = time.monotonic()
        group.shutdown()
        assert time.monotonic() - began < 30  # half the time that a call may be in flight


def test_a_pool_from_before_weft_is_not_blocked(tmp_path):
    (tmp_path / "late.py").write_text(TOO_LATE)  # TorchScript reads the source
    done = subprocess.run(
        [sys.executable, "late.py"],
        cwd=tmp_path,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},  # `import torch` loads no Weft
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "that would take the last of the 1 inter-op threads" in done.stdout, done.stdout
    assert "import weft before" in done.stdout
    assert float(done.stdout.split("seconds")[-1]) < 20
