"""Groups that workers join and leave while they run."""

from __future__ import annotations

import signal
import time

import pytest
from ports import free_port
from waiting import wait_for, wait_until
from workers import Group, Workers, ended_by, join, keep_store, kept_store, leave

SOON = 15


class Dynamic(Workers):
    """Workers that meet through a store in a process of its own, which outlives all of them."""

    def __init__(self, count: int, **environment: str) -> None:
        self.port = free_port()
        super().__init__(count, {**kept_store(self.port), **environment})
        self.keeper = self.add()
        self.keeper.call(keep_store, self.port)

    def enter(self, index: int, rank: int, name: str | None = None, **options) -> None:
        options = {"rpc_timeout": 20, **options}
        self[index].call(join, rank, None, self.meeting_place, name=name, timeout=SOON, **options)

    @property
    def meeting_place(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"


def members() -> list[tuple[int, str]]:
    import torch.distributed.rpc as rpc

    infos = rpc.api._get_current_rpc_agent().get_worker_infos()
    return [(info.id, info.name) for info in infos]


def call(to: str) -> str:
    import torch
    import torch.distributed.rpc as rpc

    assert rpc.rpc_sync(to, torch.add, args=(torch.ones(1), 1)).item() == 2
    return rpc.rpc_sync(to, name_here)


def name_here() -> str:
    import torch.distributed.rpc as rpc

    return rpc.get_worker_info().name


def try_call(to: str) -> tuple[str, float]:
    began = time.monotonic()
    try:
        return call(to), time.monotonic() - began
    except Exception as error:
        return f"{type(error).__name__}: {error}", time.monotonic() - began


def wait_for_members(worker, expected, bound: float = 10) -> None:
    wait_for(lambda: worker.call(members), expected, f"the group as {worker.label} sees it", bound)


def test_join_call_and_leave():
    with Dynamic(3) as group:
        group.enter(0, 0)
        assert group[0].call(call, "worker0") == "worker0"
        group.enter(1, 1)
        assert group[0].call(call, "worker1") == "worker1"
        group.enter(2, 2)
        everybody = [(0, "worker0"), (1, "worker1"), (2, "worker2")]
        for rank in range(3):
            assert group[rank].call(members) == everybody
            for to in range(3):
                assert group[rank].call(call, f"worker{to}") == f"worker{to}"
        group[1].call(leave)
        for rank in (0, 2):
            assert group[rank].call(members) == [(0, "worker0"), (2, "worker2")]
            text, took = group[rank].call(try_call, "worker1")
            assert "worker1" in text and "Error" in text
            assert took < 10
        assert group[0].call(call, "worker2") == "worker2"
        group[2].call(leave)
        group[0].call(leave)


@pytest.mark.parametrize(
    ("rank", "name"),
    [(1, "worker1"), (1, "other"), (2, "worker1")],
    ids=["same-rank-and-name", "same-rank", "same-name"],
)
def test_leave_and_come_again(rank, name):
    """Each time in a process of its own: torch numbers the groups that a process has joined, and the
    same process would find itself in another one."""
    with Dynamic(2) as group:
        group.enter(0, 0)
        group.enter(1, 1)
        assert group[0].call(call, "worker1") == "worker1"
        last = group[1]
        for turn in range(4):
            last.call(leave)
            last = group.add()
            place = (rank, name) if turn % 2 == 0 else (1, "worker1")
            last.call(join, place[0], None, group.meeting_place, name=place[1], timeout=SOON)
            assert group[0].call(members) == [(0, "worker0"), place]
            assert group[0].call(call, place[1]) == place[1]
            assert last.call(call, "worker0") == "worker0"


def test_a_rank_that_is_taken():
    with Dynamic(2) as group:
        group.enter(0, 0)
        error = group[1].fails(join, 0, None, group.meeting_place, name="second", rpc_timeout=10)
        assert "already has a worker of rank 0" in error.message
        assert group[0].call(call, "worker0") == "worker0"


def test_a_name_that_is_taken():
    with Dynamic(2) as group:
        group.enter(0, 0)
        error = group[1].fails(join, 1, None, group.meeting_place, name="worker0", rpc_timeout=10)
        assert "RPC worker name 'worker0' is not unique" in error.message
        assert group[0].call(members) == [(0, "worker0")]


def test_a_newcomer_after_everybody_died():
    """Nobody is left who could have noticed: the newcomer takes the dead off the list, and says so."""
    with Dynamic(3) as group:
        group.enter(0, 0)
        group.enter(1, 1)
        group[1].stop()
        group[0].kill()
        group[1].kill()
        group.enter(2, 2)
        assert group[2].call(members) == [(2, "worker2")]
        for name in ("worker0", "worker1"):
            assert f"could not reach worker '{name}'" in group[2].output()
        assert group[2].call(call, "worker2") == "worker2"


def test_a_newcomer_after_a_death():
    options = {"heartbeat_interval": 0.2, "peer_timeout": 2.0}
    with Dynamic(4) as group:
        for rank in range(3):
            group.enter(rank, rank, **options)
        assert group[0].call(call, "worker1") == "worker1"
        group[1].kill()
        group.enter(3, 3, **options)
        assert group[3].call(members) == [(0, "worker0"), (2, "worker2"), (3, "worker3")]
        for rank in (0, 2):
            assert group[3].call(call, f"worker{rank}") == f"worker{rank}"
            assert group[rank].call(call, "worker3") == "worker3"
        # Calls to the dead one fail; those who stay can leave.
        text, took = group[0].call(try_call, "worker1")
        assert "worker1" in text and took < 10
        for rank in (0, 2, 3):
            group[rank].call(leave, timeout=SOON)


def members_in_store(port: int) -> str:
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    return dist.PrefixStore("weft", dist.PrefixStore("rpc_prefix_0", store)).get("members").decode()


def wait_until_forgotten(group: Dynamic, rank: int) -> None:
    wait_until(
        lambda: f"rank={rank}" not in group.keeper.call(members_in_store, group.port).splitlines(),
        f"rank {rank} is no member in the store",
        10,
    )


def forget_in_store(port: int, rank: int) -> None:
    """As a member does that could not reach that one, which lives."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    store = dist.PrefixStore("weft", dist.PrefixStore("rpc_prefix_0", store))
    records = store.get("members").decode().split("\n.\n")  # a line with a dot ends each
    kept = [record for record in records if f"rank={rank}" not in record.splitlines()]
    store.set("members", "\n.\n".join(kept))


def test_a_newcomer_that_a_member_refuses_does_not_take_that_one_off_the_list():
    with Dynamic(3) as group:
        group.enter(0, 0)
        group.enter(1, 1)
        assert group[0].call(call, "worker1") == "worker1"
        group.keeper.call(forget_in_store, group.port, 1)
        meeting = group.meeting_place
        error = group[2].fails(join, 1, None, meeting, name="another", rpc_timeout=10)
        assert "cannot join" in error.message and "worker0" in error.message
        listed = group.keeper.call(members_in_store, group.port)
        assert "name=worker0" in listed and "name=another" not in listed
        assert group[0].call(call, "worker1") == "worker1"


def test_a_newcomer_in_the_place_of_a_member_that_lives_takes_nobody_off_the_list():
    """Under its rank and name: a member cannot tell it from that one's successor, and lets it wait
    until it would be one."""
    with Dynamic(3) as group:
        group.enter(0, 0)
        group.enter(1, 1)
        assert group[0].call(call, "worker1") == "worker1"
        group.keeper.call(forget_in_store, group.port, 1)
        error = group[2].fails(join, 1, None, group.meeting_place, name="worker1", rpc_timeout=60)
        assert "cannot join" in error.message and "worker0" in error.message
        assert "a rank of its own" in error.message
        listed = group.keeper.call(members_in_store, group.port).splitlines()
        assert "rank=0" in listed and "rank=1" not in listed
        assert group[0].call(call, "worker1") == "worker1"


def enter_and_stop_worker1(group: Dynamic, options: dict[str, float]) -> None:
    """Until the group has counted it as lost."""
    group.enter(0, 0, **options)
    group.enter(1, 1, **options)
    assert group[0].call(call, "worker1") == "worker1"
    group[1].stop()
    wait_until_forgotten(group, 1)


def test_a_member_whose_rank_was_taken_takes_nobody_off_the_list():
    options = {"heartbeat_interval": 0.2, "peer_timeout": 2.0}
    with Dynamic(3) as group:
        enter_and_stop_worker1(group, options)
        group.enter(2, 1, **options)
        assert group[2].call(call, "worker0") == "worker0"
        group[1].signal(signal.SIGCONT)
        wait_until(
            lambda: "another process has taken" in group[1].call(try_call, "worker0")[0],
            lambda: "it is told so",
            20,
        )
        listed = group.keeper.call(members_in_store, group.port).splitlines()
        assert "rank=0" in listed and "rank=1" in listed
        assert group[0].call(call, "worker1") == "worker1"
        group[1].call(leave)
        listed = group.keeper.call(members_in_store, group.port).splitlines()
        assert "rank=1" in listed, "its successor stays"
        assert group[0].call(call, "worker1") == "worker1"


@pytest.mark.parametrize("way", ["killed", "ungraceful"])
def test_the_successor_of_a_member_that_did_not_leave(way):
    """Started again under its rank and name, as a supervisor would, once a member has noticed."""
    options = {"heartbeat_interval": 0.2, "peer_timeout": 2.0}
    with Dynamic(3) as group:
        group.enter(0, 0, **options)
        group.enter(1, 1, **options)
        assert group[0].call(call, "worker1") == "worker1"
        if way == "killed":
            group[1].kill()
        else:
            group[1].call(leave, graceful=False)
        wait_until_forgotten(group, 1)
        group.enter(2, 1, **options)
        assert group[0].call(members) == [(0, "worker0"), (1, "worker1")]
        assert group[0].call(call, "worker1") == "worker1"
        assert group[2].call(call, "worker0") == "worker0"


@pytest.mark.parametrize("rank", [1, 2], ids=["rank", "name"])
def test_the_only_member_is_killed_and_started_again(rank):
    """Nobody is left who could take it off the list."""
    with Dynamic(2) as group:
        group.enter(0, 1, "actor")
        group[0].kill()
        group.enter(1, rank, "actor")
        assert group[1].call(members) == [(rank, "actor")]
        assert group[1].call(call, "actor") == "actor"


def test_a_member_that_is_stopped_keeps_its_rank():
    with Dynamic(2) as group:
        group.enter(0, 1)
        group[0].stop()
        error = group[1].fails(join, 1, None, group.meeting_place, rpc_timeout=10)
        assert "already has a worker of rank 1" in error.message


def is_listed(group: Dynamic, rank: int) -> bool:
    return f"rank={rank}" in group.keeper.call(members_in_store, group.port).splitlines()


def test_a_worker_that_could_not_join_is_not_on_the_list():
    with Dynamic(3) as group:
        group.enter(0, 0)
        wrong = {"device_maps": {"worker0": {"cpu": "cuda:99"}}}
        error = group[1].fails(join, 1, None, group.meeting_place, rpc_timeout=10, **wrong)
        assert "invalid indices" in error.message
        assert not is_listed(group, 1)
        group.enter(2, 1)
        assert group[0].call(call, "worker1") == "worker1"


def join_until_interrupted(place: str) -> tuple[str, float]:
    return ended_by(lambda: join(1, None, place, rpc_timeout=60), "init_rpc")


def test_a_worker_that_ctrl_c_ended_while_it_joined_is_not_on_the_list():
    with Dynamic(3) as group:
        group.enter(0, 0)
        group[0].stop()
        group[1].start(join_until_interrupted, group.meeting_place)
        wait_until(lambda: is_listed(group, 1), "it joins")
        group[1].signal(signal.SIGINT)
        assert group[1].result(SOON)[0] == "KeyboardInterrupt"
        assert not is_listed(group, 1)
        group[0].signal(signal.SIGCONT)
        group.enter(2, 1)
        assert group[0].call(call, "worker1") == "worker1"


def test_a_name_that_is_taken_and_then_another_in_the_same_process():
    with Dynamic(2) as group:
        group.enter(0, 0)
        error = group[1].fails(join, 1, None, group.meeting_place, name="worker0", rpc_timeout=10)
        assert "RPC worker name 'worker0' is not unique" in error.message
        group.enter(1, 1)
        assert group[1].call(call, "worker0") == "worker0"
        assert group[0].call(members) == [(0, "worker0"), (1, "worker1")]


def test_a_member_that_was_lost_meets_who_joined_meanwhile():
    options = {"heartbeat_interval": 0.2, "peer_timeout": 2.0}
    with Dynamic(4) as group:
        enter_and_stop_worker1(group, options)
        group.enter(2, 2, **options)
        group[1].signal(signal.SIGCONT)
        everybody = [(rank, f"worker{rank}") for rank in range(3)]
        for rank in range(3):
            wait_for_members(group[rank], everybody, 20)
        assert group[1].call(call, "worker2") == "worker2"
        assert group[2].call(call, "worker1") == "worker1"
        # Who joins later finds the record of one that is back as it was.
        group.enter(3, 3, **options)
        for rank in range(4):
            assert len(group[rank].call(members)) == 4


def test_several_join_at_once():
    with Dynamic(5) as group:
        for rank in range(5):
            group[rank].start(join, rank, None, group.meeting_place, rpc_timeout=20)
        for rank in range(5):
            group[rank].result(SOON)
        everybody = [(rank, f"worker{rank}") for rank in range(5)]
        for rank in range(5):
            wait_for_members(group[rank], everybody)
            assert group[rank].call(call, f"worker{(rank + 1) % 5}") == f"worker{(rank + 1) % 5}"
        for rank in range(5):
            group[rank].start(leave)
        for rank in range(5):
            group[rank].result(SOON)


# Device maps: their rules need no device.


def map_errors(per_rank: list[dict]) -> list:
    with Workers(len(per_rank)) as workers:
        for rank, options in enumerate(per_rank):
            workers[rank].start(
                join, rank, len(per_rank), workers.meeting, rpc_timeout=10, **options
            )
        return [worker.failure(SOON) for worker in workers]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device_maps": {"worker1": {0: 0}}}, "has source devices with invalid indices"),
        ({"device_maps": {"worker1": {"cpu": 0}}}, "has target devices with invalid indices"),
        ({"device_maps": {"nobody": {"cpu": "cpu"}}}, "has invalid target node names"),
        ({"devices": [0]}, "has devices with invalid indices"),
        ({"devices": ["cuda:0", "cuda:0"]}, "has duplicated devices"),
    ],
)
def test_device_maps_are_checked_on_every_worker(options, says):
    with Workers(1) as probe:
        if probe[0].call(device_count):
            pytest.skip("this machine has accelerators")
    for error in map_errors([options, {}]):
        assert error.kind == "ValueError"
        assert f"Node worker0 {says}" in error.message


def test_a_map_that_is_not_one_to_one():
    with Workers(1) as workers:
        maps = {"worker1": {0: 0, 1: 0}}
        error = workers[0].fails(join, 0, 1, workers.meeting, device_maps=maps)
        assert error.kind == "ValueError"
        assert "only supports 1-to-1 mapping" in error.message


def device_count() -> int:
    import torch

    return torch.cuda.device_count()


def test_a_map_for_oneself_on_the_host():
    with Group(2, device_maps={"worker1": {"cpu": "cpu"}}) as group:
        assert group[0].call(call, "worker1") == "worker1"
        group.shutdown()
