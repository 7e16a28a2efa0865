"""CUDA tensors of ranks that share a device, which NCCL refuses: Weft's own collectives."""

from __future__ import annotations

import os
from collections.abc import Mapping

import group_steps as steps
import pytest
import torch
from devices import need_two
from emulation import EMULATION, seed
from workers import Workers

ONE_DEVICE = {"EMULATED_CUDA_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
SIZES = (0, 1, 777, 50_001)  # the last one takes several rounds
REDUCED = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


class DeviceRanks(Workers):
    """Ranks of one group on one device; at the end none has seen a race."""

    def __init__(
        self,
        count: int,
        timeout: float = 60.0,
        staging: int = steps.STAGING,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        emulated = ONE_DEVICE if "EMULATED_CUDA_OPERATORS" in os.environ else {}
        super().__init__(count, {**emulated, **(environment or {})})
        with self.closed_on_failure():
            for rank, worker in enumerate(self):
                worker.start(steps.join, rank, count, self.meeting, timeout, staging)
            for worker in self:
                worker.result()

    def end(self) -> None:
        assert self.all(steps.findings) == [0] * len(self), self.outputs()
        self.all(steps.leave)


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    with DeviceRanks(request.param) as made:
        assert made.all(steps.delegate_name) == ["weft-shared-device"] * request.param
        yield made
        made.end()


@need_two("ranks have one each")
@pytest.mark.parametrize(("devices", "nccl"), [((0, 1), True), ((1, 1), False), ((0, 1, 0), False)])
def test_ranks_with_devices_of_their_own_get_nccl(devices, nccl):
    """Of NCCL itself, which no emulation runs, a recorder takes the place."""
    two = {"EMULATED_CUDA_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    with DeviceRanks(len(devices), environment=two) as made:
        made.all(steps.record_nccl)
        for worker, device in zip(made, devices, strict=True):
            worker.start(steps.made_for, device)
        chosen = [worker.result() for worker in made]
        if nccl:
            assert chosen == [("fake", [("cuda", rank, 2)]) for rank in range(2)]
        else:
            assert chosen == [("weft-shared-device", [])] * len(devices)
        made.end()


def test_it_is_chosen_by_itself_and_logged_once(ranks):
    said = [worker.output().count("share device") for worker in ranks]
    assert said == [1] + [0] * (len(ranks) - 1), ranks.outputs()
    assert "not through NCCL" in ranks[0].output()


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
@pytest.mark.parametrize("numel", SIZES)
def test_reductions(ranks, numel, dtype):
    ranks.all(steps.reduce_all, numel, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("numel", SIZES)
def test_movements(ranks, numel, dtype):
    ranks.all(steps.move_all, numel, dtype)


@pytest.mark.parametrize(
    "step",
    [
        steps.coalesced,
        steps.uneven_layouts,
        steps.premultiplied,
        steps.future,
        steps.sums_that_need_room,
        steps.outputs_that_repeat_themselves,
    ],
)
def test_other_forms(ranks, step):
    ranks.all(step)


@pytest.mark.parametrize("numel", [500, 50_000])
def test_inputs_and_outputs_may_share_memory(ranks, numel):
    ranks.all(steps.shared_memory, numel)


@pytest.mark.parametrize("numel", [500, 100_000])
def test_all_ranks_get_the_same_bits(ranks, numel):
    sums = ranks.all(steps.sums_are_alike, numel)
    assert all(one == sums[0] for one in sums)


def test_order_on_streams(ranks, delays):
    ranks.all(seed, delays)
    ranks.all(steps.streams, 3000)
    ranks.all(steps.streams, 40_000)
    ranks.all(steps.message_order, 3000)
    assert ranks.all(steps.findings) == [0] * len(ranks), ranks.outputs()


def test_messages_that_are_late(ranks):
    ranks.all(steps.late_messages, 3000)


def test_a_message_of_many_chunks(ranks):
    ranks.all(steps.message_order, 2_000_000)


def test_a_slot_is_filled_again_when_it_was_read():
    """A sender's stream is often ahead of the receiver's by more than a message takes on the host."""
    with DeviceRanks(2, environment={"EMULATED_CUDA_MAX_DELAY_US": "5000"}) as made:
        for delays in range(20):
            made.all(seed, delays)
            made.all(steps.message_order, 1_500_000)
        made.end()


@pytest.fixture
def few_delays(ranks, delays):
    """Twenty seeds for two ranks, three for three."""
    if len(ranks) == 3 and delays > 2:
        pytest.skip("three seeds are enough for three ranks")
    ranks.all(seed, delays)
    yield
    assert ranks.all(steps.findings) == [0] * len(ranks), ranks.outputs()


@pytest.mark.usefixtures("few_delays")
def test_every_collective_under_twenty_delays(ranks):
    ranks.all(steps.reduce_all, 777, torch.float32)
    ranks.all(steps.move_all, 777, torch.float32)
    for step in (steps.coalesced, steps.uneven_layouts, steps.premultiplied, steps.barrier):
        ranks.all(step)


@pytest.mark.usefixtures("few_delays")
def test_ddp_trains_as_one_process_does(ranks):
    ranks.all(steps.ddp)


@pytest.mark.usefixtures("few_delays")
def test_fsdp_trains_as_one_process_does(ranks):
    ranks.all(steps.fsdp)


def test_different_calls_are_told_to_all(ranks):
    for said in ranks.all(steps.different_calls):
        assert "different operations" in said and "ALLREDUCE" in said and "BROADCAST" in said


def test_what_has_no_meaning_is_refused(ranks):
    for said in ranks.all(steps.refused):
        assert len(said) == 2
        assert "not reduced" in said[0] and "no meaning" in said[1]


def test_a_barrier(ranks):
    ranks.all(steps.barrier)


def test_a_staging_buffer_of_the_usual_size():
    with DeviceRanks(2, staging=32 << 20) as made:
        made.all(steps.streams, 6_000_000)
        made.end()


def test_a_rank_that_stays_away_is_named():
    with DeviceRanks(3, timeout=8.0) as made:
        made.all(steps.delegate_name)
        made[0].start(steps.timed_failure, 1000)
        made[1].start(steps.timed_failure, 1000)
        for worker in (made[0], made[1]):
            kind, said, seconds = worker.result()
            assert kind == "DistBackendError" and "all_reduce" in said and "rank 2" in said
            assert "Timed out" in said and seconds < 20


@pytest.mark.parametrize("numel", [1000, 1_000_000])
def test_a_rank_that_dies_is_named(numel):
    with DeviceRanks(3) as made:
        made.all(steps.delegate_name)
        made[0].start(steps.timed_failure, numel)
        made[1].start(steps.timed_failure, numel)
        assert not made[0].has_answered_within(0.5)
        made[2].kill()
        for worker in (made[0], made[1]):
            kind, said, seconds = worker.result()
            assert kind == "DistBackendError" and "rank 2" in said and seconds < 10, said
        kind, said, _ = made[0].call(steps.timed_failure, 10)
        assert kind == "DistBackendError" and "rank 2" in said


def test_a_rank_that_dies_in_the_middle_is_named():
    """It has met the others and queued its work: what they wait for on the device never comes."""
    with DeviceRanks(2) as made:
        made.all(steps.delegate_name)
        made[0].start(steps.timed_failure, 20_000_000)
        made[1].start(steps.timed_failure, 20_000_000)
        assert not made[0].has_answered_within(1.0)
        made[1].kill()
        kind, said, _ = made[0].result()
        assert kind == "DistBackendError" and "rank 1" in said, said


def test_a_message_whose_sender_dies_is_named():
    with DeviceRanks(2) as made:
        made.all(steps.delegate_name)
        made[0].start(steps.receive_failure, 1)
        assert not made[0].has_answered_within(0.5)
        made[1].kill()
        kind, said = made[0].result()
        assert kind == "DistBackendError" and "weft:recv" in said and "rank 1" in said


OUT_OF_STEP = "before it was done with the other ranks"
emulated = pytest.mark.skipif(EMULATION is None, reason="only emulated calls can be made to fail")


@emulated
def test_a_rank_that_fails_between_the_meetings_ends_the_group():
    """The caller's place on its stream is recorded first, then that the piece is there."""
    with DeviceRanks(2) as made:
        made.all(steps.delegate_name)
        made[1].start(steps.reductions_of_which_a_record_fails, 0)
        first, second = made[0].call(steps.reductions_of_which_a_record_fails, 2)
        assert "unknown error" in first
        assert f"weft:all_reduce failed on rank 0 {OUT_OF_STEP}" in second
        assert all("aborted on rank 0" in said for said in made[1].result())


@emulated
def test_an_error_that_cuda_tells_late_is_the_operations():
    """All is queued; the last record is of its end."""
    with DeviceRanks(2) as made:
        made.all(steps.delegate_name)
        made[1].start(steps.reductions_of_which_a_record_fails, 0)
        first, second = made[0].call(steps.reductions_of_which_a_record_fails, 3)
        assert "unknown error" in first and second == "well"
        assert made[1].result() == ["well", "well"]
        made[1].start(steps.future_of_which_a_record_fails, 0)
        assert "unknown error" in made[0].call(steps.future_of_which_a_record_fails, 3)
        assert made[1].result() == "well"
        made.end()


@emulated
@pytest.mark.parametrize("failing", [0, 1])
def test_a_message_that_breaks_off_ends_the_group(failing):
    """What is sent next does not arrive in place of its missing chunks."""
    with DeviceRanks(2) as made:
        made.all(steps.delegate_name)
        made[1 - failing].start(steps.messages_of_which_a_copy_fails, failing)
        first, second = made[failing].call(steps.messages_of_which_a_copy_fails, failing)
        assert "unknown error" in first
        way = ("send to rank 1", "recv from rank 0")[failing]
        assert f"weft:{way} failed on rank {failing} {OUT_OF_STEP}" in second
        assert f"aborted on rank {failing}" in made[1 - failing].result()[1]


def test_an_abort_fails_those_who_wait():
    with DeviceRanks(2) as made:
        made.all(steps.delegate_name)
        made[0].start(steps.timed_failure, 1000)
        made[1].start(steps.start_and_abort)
        assert "abort" in made[1].result()
        kind, said, _ = made[0].result()
        assert kind == "DistBackendError" and "aborted on rank 1" in said, said
        kind, said, _ = made[0].call(steps.timed_failure, 10)
        assert kind == "DistBackendError" and "aborted on rank 1" in said, said
