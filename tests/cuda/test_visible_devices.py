"""Workers that see different devices of their machine: those that both see are found by PCI bus id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
import torch.distributed.rpc as rpc
from cuda_workers import CudaGroup, metric
from devices import need_two
from emulation import EMULATION, seed
from test_rpc import chain, counted, double
from waiting import wait_until
from workers import Workers, join

pytestmark = [
    need_two("workers see different ones"),
    pytest.mark.skipif(EMULATION is None, reason="names the emulated devices"),
]


class Seeing(Workers):
    """Two workers of a group, each of which sees some devices of the machine, by their numbers."""

    def __init__(self, visible: Sequence[str], maps: Sequence[Mapping[int, int]]) -> None:
        super().__init__(0, {"WEFT_LOG_LEVEL": "info"})
        with self.closed_on_failure():
            for devices in visible:
                self.add({"CUDA_VISIBLE_DEVICES": devices})
            for rank, worker in enumerate(self):
                own = {f"worker{1 - rank}": dict(maps[rank])}
                worker.start(join, rank, 2, self.meeting, device_maps=own)
            for worker in self:
                worker.result()

    end = CudaGroup.end


# What workers run.


def doubled_there(device: int, name: str) -> None:
    x = chain(counted(device))
    there, back = rpc.rpc_sync("worker1", double_at, args=(x,))
    assert there == name
    assert back.device.index == device
    assert torch.equal(back.cpu(), chain(chain(torch.arange(1000.0))))


def double_at(x: torch.Tensor) -> tuple[str, torch.Tensor]:
    return torch.cuda.get_device_name(x.device), double(x)


def twenty_times(device: int, name: str) -> None:
    for delays in range(20):
        seed(delays)
        doubled_there(device, name)


def lends(device: int, name: str) -> None:
    """In both directions."""

    def lent() -> bool:
        staged = metric("bytes_staged")
        theirs = rpc.rpc_sync("worker1", metric, args=("bytes_staged",))
        doubled_there(device, name)
        now = rpc.rpc_sync("worker1", metric, args=("bytes_staged",))
        return (metric("bytes_staged"), now) == (staged, theirs)

    wait_until(lent, "tensors are lent")


# The tests.


@pytest.mark.parametrize(
    ("visible", "maps", "device", "name"),
    [
        (("0,1", "1"), ({1: 0}, {0: 1}), 1, "Emulated device 1"),
        (("0,1", "1,0"), ({0: 0}, {0: 0}), 0, "Emulated device 1"),
    ],
    ids=["one of them", "in another order"],
)
def test_a_device_with_another_number_is_found(visible, maps, device, name):
    with Seeing(visible, maps) as workers:
        workers[0].call(lends, device, name)
        staged = workers[0].call(metric, "bytes_staged")
        workers[0].call(twenty_times, device, name)
        assert workers[0].call(metric, "bytes_staged") == staged
        workers.end()


def test_tensors_of_a_device_that_the_other_does_not_see_go_through_host_memory():
    with Seeing(("0,1", "0"), ({1: 0}, {0: 1})) as workers:
        workers[0].call(twenty_times, 1, "Emulated device 0")
        said = workers[0].wait_for_output("through host memory")
        assert "the device at PCI 0000:02:00.0 is not visible to this process" in said
        assert workers[0].call(metric, "bytes_lent") == 8  # the number of the probe
        assert workers[0].call(metric, "bytes_staged") >= 20 * 4000
        workers.end()
