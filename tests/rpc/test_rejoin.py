"""Workers that are killed and started again under the same name: new calls work, what refers to the
former life fails and says so, nothing of the two lives is confused."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist
from rejoining import Static
from waiting import wait_for, wait_until

_kept: list = []
BOUND = 20


def call(to: str) -> int:
    import torch
    import torch.distributed.rpc as rpc

    return int(rpc.rpc_sync(to, torch.add, args=(torch.ones(1), 1)).item())


def make(value):
    return value


def keep_rrefs(to: str, values: list[int]) -> list[int]:
    import torch
    import torch.distributed.rpc as rpc

    rrefs = [rpc.remote(to, make, args=(value,)) for value in values]
    _kept.extend(rrefs)
    # A kill before the owner's word that it made them is another case (test_loss).
    torch.futures.wait_all([rref._get_future() for rref in rrefs])
    return [rref.to_here() for rref in rrefs]


def kept(index: int, timeout: float = 10):
    """What the RRef gives, or its error; and how long that took."""
    began = time.monotonic()
    try:
        result = _kept[index].to_here(timeout=timeout)
    except RuntimeError as error:
        result = str(error)
    return result, time.monotonic() - began


def pass_on(index: int, to: str):
    import torch.distributed.rpc as rpc

    try:
        return rpc.rpc_sync(to, look, args=(_kept[index],), timeout=10)
    except RuntimeError as error:
        return str(error)


def look(rref):
    return rref.to_here(timeout=10)


def forget() -> None:
    _kept.clear()


def held_here() -> int:
    import weft

    return sum(
        1 for row in weft.rref_report() if row.owner == "worker0" and "worker1" in row.holders
    )


def says_former_life(text, name: str) -> bool:
    return f"worker '{name}'" in text and "was started again" in text and "former process" in text


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "at-once"])
def test_a_worker_that_was_killed_joins_again(noticed):
    with Static(3) as group:
        assert group[0].call(keep_rrefs, "worker1", [10, 11]) == [10, 11]
        assert group[1].call(keep_rrefs, "worker0", [20]) == [20]
        group[1].kill()
        if noticed:
            text = group[0].fails(call, "worker1").message
            assert "worker 'worker1' (rank 1)" in text
        back = group.again(1)
        # New calls work, both ways, also for one that never talked to the former life.
        assert group[0].call(call, "worker1") == 2
        assert group[2].call(call, "worker1") == 2
        assert back.call(call, "worker0") == 2
        assert back.call(call, "worker2") == 2
        # The old references say what happened, at once; new ones are not taken for them.
        assert group[0].call(keep_rrefs, "worker1", [30, 31, 32]) == [30, 31, 32]
        assert back.call(keep_rrefs, "worker0", [40, 41]) == [40, 41]
        for index in (0, 1):
            text, took = group[0].call(kept, index)
            assert says_former_life(text, "worker1"), text
            assert took < 2
        assert says_former_life(group[0].call(pass_on, 0, "worker2"), "worker1")
        for index, value in ((2, 30), (3, 31), (4, 32)):
            assert group[0].call(kept, index)[0] == value
        assert group[0].call(pass_on, 3, "worker2") == 31
        # What the former life held here is released; what the new one holds is not.
        wait_for(lambda: group[0].call(held_here), 2, "values held for worker1", BOUND)
        assert [back.call(kept, index)[0] for index in (0, 1)] == [40, 41]
        for worker in (group[0], back):
            worker.call(forget)
        group.shutdown([group[0], back, group[2]])


def test_again_and_again():
    with Static(2) as group:
        last = group[1]
        for turn in range(3):
            assert group[0].call(keep_rrefs, "worker1", [turn]) == [turn]
            last.kill()
            last = group.again(1)
            assert last.call(call, "worker0") == 2
            assert group[0].call(call, "worker1") == 2
        for index in range(3):
            assert says_former_life(group[0].call(kept, index)[0], "worker1")
        group[0].call(forget)
        group.shutdown([group[0], last])


def test_one_that_lives_cannot_be_replaced():
    with Static(2) as group:
        assert group[0].call(call, "worker1") == 2
        other = group.add()
        group.enter(other, 1)
        assert "already has a worker of rank 1, which is alive" in other.failure().message
        renamed = group.add()
        group[1].kill()
        group.enter(renamed, 1, name="another")
        assert "keeps its rank and name" in renamed.failure().message
        assert group.again(1).call(call, "worker0") == 2


def pass_barrier() -> list[int]:
    """Waits as rpc.shutdown does. Who was lost or started again."""
    import torch.distributed.rpc as rpc

    return rpc.api._get_current_rpc_agent().barrier(0)


def call_from(worker: str, to: str) -> int:
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync(worker, call, args=(to,))


def test_a_worker_counts_once_in_a_barrier_however_often_it_is_started():
    with Static(3) as group:
        store = dist.TCPStore("127.0.0.1", group.port, is_master=False)
        first_round = "rpc_prefix_0/weft/barrier/0/0/"

        def posted() -> bytes:
            key = first_round + "1"
            return store.get(key) if store.check([key]) else b""

        def waits_in_barrier(worker) -> None:
            before = posted()
            worker.start(pass_barrier)
            wait_until(lambda: posted() != before, "worker 1 waits in the barrier")

        group[2].start(pass_barrier)
        last = group[1]
        for _ in range(3):
            waits_in_barrier(last)
            last.kill()
            last = group.again(1)
        waits_in_barrier(last)
        assert not store.check([first_round + "all"]), "it is over without worker 0"
        workers = [group[0], last, group[2]]
        group[0].start(pass_barrier)
        assert [worker.result() for worker in workers] == [[1]] * 3
        group.shutdown(workers)


def test_a_barrier_waits_for_a_worker_that_was_lost_in_it_and_is_back():
    with Static(3) as group:
        assert group[0].call(call, "worker1") == 2
        group[0].start(pass_barrier)
        group[1].kill()
        group[2].fails(call_from, "worker0", "worker1")  # it is lost there
        back = group.again(1)
        group[2].start(pass_barrier)
        assert not group[0].pipe.poll(3), "it is over without worker 1"
        assert back.call(call, "worker0") == 2
        back.start(pass_barrier)
        workers = [group[0], back, group[2]]
        assert [worker.result() for worker in workers] == [[1]] * 3
        group.shutdown(workers)
        assert not any("without a missing worker" in worker.output() for worker in workers)
