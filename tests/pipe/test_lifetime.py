"""Threads and memory come and go with the Pipe; forks, and several Pipes at once."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from pipe_models import PipeAsLayer, assert_same, gradients, make_pipe, mlp, plain_copy
from threads import in_threads
from torch import nn

pytestmark = pytest.mark.usefixtures("alone")


def name_of(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except OSError:  # it has ended meanwhile
        return ""


def stage_threads() -> int:
    tasks = Path("/proc/self/task").iterdir()
    return sum(name_of(task).startswith("weft-pipe-") for task in tasks)


def step(pipe, x):
    pipe.zero_grad()
    pipe(x).local_value().sum().backward()


def test_threads_start_late_and_end_with_the_pipe():
    gc.collect()
    before = stage_threads()
    pipe = make_pipe(mlp(), "threads", chunks=2)
    assert stage_threads() == before
    step(pipe, torch.randn(4, 4))
    assert stage_threads() == before + 5
    assert pipe._engine.threads == 5
    output = pipe(torch.randn(4, 4)).local_value()
    del pipe
    gc.collect()
    assert stage_threads() == before
    output.sum().backward()  # the graph outlives its Pipe
    del output
    gc.collect()
    assert stage_threads() == before


def test_nothing_is_kept_after_a_run():
    pipe = make_pipe(mlp(), "threads", chunks=2)
    x = torch.randn(4, 4, requires_grad=True)
    output = pipe(x).local_value()
    output.sum().backward()
    inputs = weakref.ref(x)
    del x, output
    gc.collect()
    assert inputs() is None


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


@pytest.mark.parametrize("way", ["inline", "threads", "auto"])
def test_a_hundred_runs_grow_nothing(way):
    threads = stage_threads()
    pipe = make_pipe(mlp(), way, chunks=4)
    x = torch.randn(64, 4)
    for _ in range(30):
        step(pipe, x)
    # What else the tests' process does may grow it once; a leak grows it in each hundred.
    growths = []
    for _ in range(3):
        growths.append(growth_of_a_hundred(pipe, x))
        assert stage_threads() <= threads + len(pipe.devices)
        objects, memory = growths[-1]
        if objects < 50 and memory < 8 * 1024:
            return
    pytest.fail(f"objects and KiB that each hundred runs added: {growths}")


def growth_of_a_hundred(pipe, x):
    """By how many objects, and KiB of memory, the process has grown."""
    gc.collect()
    memory, objects = resident_kib(), len(gc.get_objects())
    for _ in range(100):
        step(pipe, x)
    gc.collect()
    return len(gc.get_objects()) - objects, resident_kib() - memory


def test_two_pipes_at_once():
    plain = mlp()
    x = torch.randn(8, 4)
    pipes = [
        make_pipe(plain_copy(plain), "threads", chunks=2, checkpoint="never"),
        make_pipe(plain_copy(plain), "threads", chunks=4, checkpoint="always"),
    ]

    def work(pipe):
        for _ in range(20):
            step(pipe, x)

    in_threads(*(functools.partial(work, pipe) for pipe in pipes))
    plain(x).sum().backward()
    for pipe in pipes:
        assert_same(gradients(pipe), gradients(plain), atol=1e-5)


def test_shared_parameters_in_two_threads():
    """Both backwards add to the same gradients."""
    shared = mlp()
    plain = plain_copy(shared)
    x = torch.randn(8, 4)
    pipes = [make_pipe(shared, "threads", chunks=2) for _ in range(2)]

    def work(pipe):
        for _ in range(10):
            pipe(x).local_value().sum().backward()

    in_threads(*(functools.partial(work, pipe) for pipe in pipes))
    (20 * plain(x).sum()).backward()
    assert_same(gradients(shared), gradients(plain), atol=1e-4, rtol=1e-4)


def test_a_pipe_inside_a_pipe():
    plain = mlp()
    inner = make_pipe(plain_copy(plain), "threads", chunks=2)
    pipe = make_pipe(nn.Sequential(PipeAsLayer(inner), nn.Tanh()), "threads", chunks=2)
    x = torch.randn(8, 4)
    pipe(x).local_value().sum().backward()
    plain(x).tanh().sum().backward()
    assert_same(gradients(inner), gradients(plain))


def test_from_two_threads():
    pipe, plain = make_pipe(mlp(), "threads", chunks=4), mlp()
    x = torch.randn(8, 4)
    outputs = [None, None]

    def work(k):
        for _ in range(10):
            outputs[k] = pipe(x * (k + 1)).local_value()

    in_threads(lambda: work(0), lambda: work(1))
    for k in range(2):
        assert_same(outputs[k], plain(x * (k + 1)))


FORK = """
import os, signal, tempfile, torch, weft
from torch import nn
torch.set_num_threads(1)
weft.init_rpc("alone", rank=0, world_size=1, init_method="file://" + tempfile.mktemp())
from weft import _C
pipe = weft.Pipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), chunks=2)
pipe._engine.set_threading(_C.pipe.Threading.threads)
x = torch.ones(4, 4)
expected = pipe(x).local_value()
child = os.fork()
if child == 0:
    signal.alarm(60)
    output = pipe(x).local_value()
    output.sum().backward()
    ok = torch.equal(output, expected) and pipe._engine.threads == 2
    del output
    pipe._engine.rest()
    os._exit(0 if ok else 1)
status = os.waitpid(child, 0)[1]
assert torch.equal(pipe(x).local_value(), expected)
os._exit(os.waitstatus_to_exitcode(status))
"""


def test_fork():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=180)


END = """
import tempfile, torch, weft
from torch import nn
weft.init_rpc("alone", rank=0, world_size=1, init_method="file://" + tempfile.mktemp())
from weft import _C
pipe = weft.Pipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), chunks=2)
pipe._engine.set_threading(_C.pipe.Threading.threads)
output = pipe(torch.ones(4, 4)).local_value()
output.sum().backward()
kept = pipe(torch.ones(4, 4)).local_value()
import torch.distributed.rpc as rpc
rpc.shutdown()
print("end")
"""


def test_the_interpreter_ends_with_a_pipe_alive():
    done = subprocess.run(
        [sys.executable, "-c", END], check=True, timeout=180, capture_output=True, text=True
    )
    assert done.stdout.strip() == "end"
