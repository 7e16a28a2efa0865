"""The threads that serve: what is left behind on them, and when no more can be started."""

from __future__ import annotations

import ctypes
import threading

import pytest
from workers import Group, Workers, join

_libc = ctypes.CDLL(None)
_before = ctypes.create_string_buffer(128)  # room for a pthread_attr_t


def no_more_threads() -> None:
    """Stacks larger than all addresses: as where the system's limit is reached, for root as well."""
    attributes = ctypes.create_string_buffer(128)
    assert _libc.pthread_getattr_default_np(_before) == 0
    assert _libc.pthread_attr_init(attributes) == 0
    assert _libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 47)) == 0
    assert _libc.pthread_setattr_default_np(attributes) == 0
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threading.Thread(target=print).start()


def threads_again() -> None:
    assert _libc.pthread_setattr_default_np(_before) == 0


def add(x: int, y: int) -> int:
    return x + y


def add_there(to: str, x: int, y: int) -> int:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync(to, add, args=(x, y))


def call(to: str, me: str) -> int:
    """Calls of every kind, more at once than the callee has threads; how many there were."""
    import torch
    import torch.distributed.rpc as rpc

    calls = [rpc.rpc_async(to, add, args=(i, 1)) for i in range(50)]
    calls += [rpc.rpc_async(to, add_there, args=(me, i, 1)) for i in range(50)]
    chained = [call.then(lambda done: done.wait() + 1) for call in calls]
    assert torch.futures.wait_all(chained) == [i + 2 for i in range(50)] * 2
    held = [rpc.remote(to, torch.full, args=([1000], float(i))) for i in range(10)]
    assert [rref.to_here()[0].item() for rref in held] == list(range(10))
    return len(calls) + len(held)


def test_calls_in_both_directions_go_on_without_another_thread():
    with Group(2, rpc_timeout=20) as group:
        group[0].call(no_more_threads)
        assert group[0].call(call, "worker1", "worker0") == 110
        assert group[1].call(call, "worker0", "worker1") == 110
        group[0].call(threads_again)
        assert group[1].call(call, "worker0", "worker1") == 110
        group.shutdown()


def join_in_vain(meeting: str) -> str:
    no_more_threads()
    try:
        join(0, 1, meeting)
    except RuntimeError as error:
        return str(error)
    finally:
        threads_again()
    raise AssertionError("it joined")


def test_where_no_thread_can_be_started_joining_says_so():
    with Workers(1) as workers:
        text = workers[0].call(join_in_vain, workers.meeting)
    assert "no thread can be started here (EAGAIN)" in text
    assert "worker 'worker0' (rank 0)" in text


# What a function may leave behind on the thread that runs it.


def leave_behind(kind: str) -> bool:
    import torch

    guards = {
        "autocast": lambda: torch.set_autocast_enabled("cpu", True),
        "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
        "default device": lambda: torch.set_default_device("meta"),
        "function mode": lambda: torch.overrides.BaseTorchFunctionMode().__enter__(),
        "fake": lambda: torch._subclasses.fake_tensor.FakeTensorMode().__enter__(),
        "inference": lambda: kept.append(torch.inference_mode()) or kept[-1].__enter__(),
        "no grad": lambda: torch.set_grad_enabled(False),
        "saved hooks": lambda: torch.autograd.graph.save_on_cpu().__enter__(),
    }
    guards[kind]()
    return probe() != FRESH


kept: list = []  # its end would switch inference mode off
FRESH = (True, False, False, "cpu", "torch.bfloat16", "torch.float32", 0, True)


def probe() -> tuple:
    import torch

    here = torch.ones(2, 2, requires_grad=True)
    product = here.mm(here)
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        str(product.device),
        str(torch.get_autocast_dtype("cpu")),
        str(product.dtype),
        torch._C._len_torch_function_stack(),
        hooks and product.requires_grad and type(product) is torch.Tensor,
    )


def probe_there() -> tuple:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync("worker1", probe)


def leave_behind_there(kind: str) -> bool:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync("worker1", leave_behind, args=(kind,))


@pytest.fixture(scope="module")
def one_thread():
    with Group(2, num_worker_threads=1) as group:
        yield group
        group.shutdown()


@pytest.mark.parametrize(
    "kind",
    [
        "autocast",
        "autocast dtype",
        "default device",
        "function mode",
        "fake",
        "inference",
        "no grad",
        "saved hooks",
    ],
)
def test_a_function_leaves_nothing_behind_for_the_next(one_thread, kind):
    assert one_thread[0].call(leave_behind_there, kind)
    assert one_thread[0].call(probe_there) == FRESH
