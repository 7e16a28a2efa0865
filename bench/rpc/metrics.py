"""What is measured. Each metric runs in the calling worker and returns figures by name.

A figure's name ends in its unit: ``us`` and ``ms`` are better low, ``per_s`` and ``gb_s`` high.
Functions that the peer runs live here too, so that both processes can name them.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

from bench.report import Figures

PEER = "callee"


def nothing() -> None:
    """The empty Python function."""


def take(*_tensors: object) -> None:
    """Receives what it is given, answers nothing."""


@torch.jit.script
def scripted_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def process_cpu_seconds() -> float:
    """CPU time of this process, all threads."""
    return time.process_time()


def _quantiles(name: str, seconds: list[float]) -> Figures:
    ordered = sorted(seconds)
    at = lambda q: ordered[min(len(ordered) - 1, int(q * len(ordered)))] * 1e6  # noqa: E731
    return {f"{name} p50 us": at(0.50), f"{name} p99 us": at(0.99)}


def _time_each(count: int, call: Callable[[], object], warm_up: int = 20) -> list[float]:
    for _ in range(warm_up):
        call()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def sync_add() -> Figures:
    one = torch.ones(1)
    return _quantiles(
        "rpc_sync add", _time_each(1000, lambda: rpc.rpc_sync(PEER, torch.add, args=(one, 1)))
    )


def python_call() -> Figures:
    return _quantiles("python function", _time_each(1000, lambda: rpc.rpc_sync(PEER, nothing)))


def remote_to_here() -> Figures:
    one = torch.ones(1)
    return _quantiles(
        "remote + to_here",
        _time_each(500, lambda: rpc.remote(PEER, torch.add, args=(one, 1)).to_here()),
    )


def scripted_call() -> Figures:
    one = torch.ones(1)
    return _quantiles(
        "scripted rpc_async",
        _time_each(500, lambda: rpc.rpc_async(PEER, scripted_add, args=(one, one)).wait()),
    )


@torch.jit.interface
class Forward:
    """What PyTorch's remote module asks for where Weft's reads the signature."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass


class Doubled(torch.nn.Module):
    """The module that lives at the peer; small, so that the call is what is measured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def _remote_module() -> torch.nn.Module:
    """Of Weft's class on Weft, of PyTorch's on TensorPipe; scripted at both ends."""
    if type(rpc.api._get_current_rpc_agent()).__name__ == "WeftAgent":
        import weft

        return weft.RemoteModule(PEER, Doubled, scripted=True)
    from torch.distributed.nn.api.remote_module import _RemoteModule

    return _RemoteModule(PEER, Doubled, _module_interface_cls=Forward)


def scripted_remote_module() -> Figures:
    one = torch.ones(1)
    module = torch.jit.script(_remote_module())
    return _quantiles("scripted RemoteModule", _time_each(500, lambda: module(one)))


def in_flight() -> Figures:
    one = torch.ones(1)

    def burst() -> None:
        futures = [rpc.rpc_async(PEER, torch.add, args=(one, 1)) for _ in range(1000)]
        torch.futures.wait_all(futures)

    times = _time_each(3, burst, warm_up=1)
    return {"1000 in flight per_s": 1000 / sorted(times)[1]}


def four_threads() -> Figures:
    one = torch.ones(1)

    def client() -> None:
        for _ in range(250):
            rpc.rpc_sync(PEER, torch.add, args=(one, 1))

    def run() -> None:
        threads = [threading.Thread(target=client) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    times = _time_each(3, run, warm_up=1)
    return {"4 client threads per_s": 1000 / sorted(times)[1]}


def autograd() -> Figures:
    a = torch.ones(8, requires_grad=True)
    b = torch.ones(8, requires_grad=True)

    def step() -> None:
        with dist_autograd.context() as context:
            out = rpc.rpc_sync(PEER, torch.add, args=(a, b))
            dist_autograd.backward(context, [out.sum()])

    return _quantiles("dist autograd", _time_each(200, step))


def _send(label: str, size: int, repeats: int) -> Figures:
    tensor = torch.empty(size, dtype=torch.uint8).fill_(1)
    times = _time_each(
        repeats, lambda: rpc.rpc_sync(PEER, take, args=(tensor,), timeout=120), warm_up=3
    )
    return {f"send {label} gb_s": size / sorted(times)[len(times) // 2] / 1e9}


def send_64k() -> Figures:
    return _send("64 KiB", 64 << 10, 300)


def send_1m() -> Figures:
    return _send("1 MiB", 1 << 20, 100)


def send_16m() -> Figures:
    return _send("16 MiB", 16 << 20, 20)


def send_256m() -> Figures:
    return _send("256 MiB", 256 << 20, 4)


def read(tensor: torch.Tensor) -> None:
    """As ``take``, and the receiver reads all of it."""
    tensor.view(torch.int64).sum()  # eight bytes at a time: it should not take longer than sending


def _send_in_turns(label: str, make: Callable[[], dict[str, Callable[[], object]]]) -> Figures:
    """GB/s of 256 MiB in several ways, which take turns."""
    size = 256 << 20
    times: dict[str, list[float]] = {}
    for turn in range(5):
        for name, step in make().items():
            start = time.perf_counter()
            step()
            if turn >= 2:  # before, memory was made warm
                times.setdefault(name, []).append(time.perf_counter() - start)
    return {
        f"{label} {name} gb_s": size / sorted(taken)[len(taken) // 2] / 1e9
        for name, taken in times.items()
    }


def send_weft_empty() -> Figures:
    """256 MiB of ``weft.empty`` beside ordinary memory: the same tensor again, and a new one each
    time; to a receiver that only takes it, and to one that reads it."""
    import weft

    size = 256 << 20

    def send(function: Callable[..., object], tensor: torch.Tensor) -> None:
        rpc.rpc_sync(PEER, function, args=(tensor,), timeout=120)

    same = {
        "ordinary": torch.empty(size, dtype=torch.uint8).fill_(1),
        "weft.empty": weft.empty(size, dtype=torch.uint8).fill_(1),
    }
    makers = {"ordinary": torch.empty, "weft.empty": weft.empty}
    figures: Figures = {}
    for function in (take, read):
        what = f"256 MiB {function.__name__}"
        figures |= _send_in_turns(
            f"{what}, again",
            lambda function=function: {
                name: lambda tensor=tensor: send(function, tensor) for name, tensor in same.items()
            },
        )
        figures |= _send_in_turns(
            f"{what}, made and filled",
            lambda function=function: {
                name: lambda make=make: send(function, make(size, dtype=torch.uint8).fill_(1))
                for name, make in makers.items()
            },
        )
    return figures


def many_tensors() -> Figures:
    tensors = [torch.ones(1024) for _ in range(200)]
    times = _time_each(30, lambda: rpc.rpc_sync(PEER, take, args=tuple(tensors)), warm_up=3)
    return {"200 x 4 KiB ms": sorted(times)[len(times) // 2] * 1e3}


def _resnet18_state() -> dict[str, torch.Tensor]:
    """The shapes of a ResNet-18: 122 tensors, 46.8 MB."""
    shapes = [(64, 3, 7, 7), (1000, 512), (1000,)]
    for width, blocks in ((64, 4), (128, 4), (256, 4), (512, 4)):
        shapes += [(width, width, 3, 3)] * blocks + [(width,)] * (blocks * 5)
    return {str(i): torch.ones(shape) for i, shape in enumerate(shapes)}


_kept: list[object] = []


def keep(value: object) -> None:
    """Receives what it is given and keeps it until it is given another."""
    _kept[:] = [value]


def state_dict() -> Figures:
    """A receiver that drops the state at once, and one that holds it until the next is there; then
    the same with a snapshot of it, which Weft sends to its own host without a copy.

    Where received memory comes from malloc the two differ: what is dropped whole goes back to the
    system, and the next state waits for 12,000 fresh pages; beside one that is kept they stay.
    """
    import weft

    state = _resnet18_state()
    figures: Figures = {}
    for name, function, sent in (
        ("", take, state),
        (", kept", keep, state),
        (", snapshot, kept", keep, weft.snapshot(state)),
    ):
        # Some calls until each side has the memory that it will use again.
        times = _time_each(
            15, functools.partial(rpc.rpc_sync, PEER, function, args=(sent,)), warm_up=6
        )
        figures[f"ResNet-18 state{name} ms"] = sorted(times)[len(times) // 2] * 1e3
    rpc.rpc_sync(PEER, keep, args=(None,))
    return figures


def cpu_per_call() -> Figures:
    one = torch.ones(1)
    count = 2000
    there = rpc.rpc_sync(PEER, process_cpu_seconds)
    here = process_cpu_seconds()
    for _ in range(count):
        rpc.rpc_sync(PEER, torch.add, args=(one, 1))
    here = process_cpu_seconds() - here
    there = rpc.rpc_sync(PEER, process_cpu_seconds) - there
    return {"CPU per call, both us": (here + there) / count * 1e6}


def idle_cpu() -> Figures:
    # Calls have just been made; an idle pair must fall silent by itself.
    time.sleep(0.2)
    start, wall = process_cpu_seconds(), time.perf_counter()
    time.sleep(1.0)
    busy = (process_cpu_seconds() - start) / (time.perf_counter() - wall)
    return {"idle CPU per process pct": busy * 100}


def threads() -> Figures:
    return {"threads per process count": float(len(os.listdir("/proc/self/task")))}


METRICS: dict[str, Callable[[], Figures]] = {
    "sync_add": sync_add,
    "python_call": python_call,
    "remote_to_here": remote_to_here,
    "scripted_call": scripted_call,
    "scripted_remote_module": scripted_remote_module,
    "in_flight": in_flight,
    "four_threads": four_threads,
    "autograd": autograd,
    "send_64k": send_64k,
    "send_1m": send_1m,
    "send_16m": send_16m,
    "send_256m": send_256m,
    "send_weft_empty": send_weft_empty,
    "many_tensors": many_tensors,
    "state_dict": state_dict,
    "cpu_per_call": cpu_per_call,
    "idle_cpu": idle_cpu,
    "threads": threads,
}
