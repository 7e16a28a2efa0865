"""What goes wrong, and what is said then: bad arguments, late ranks, dead ranks, aborts."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time

import pytest
from ctrl_c import Delays, delay
from ports import free_port
from ranks import PATHS, Ranks, leave, meet
from workers import Workers, ended_by

SOON = 4.0  # seconds after a kill -9 by which every survivor must have failed; silence takes 5
SAID_TWICE = re.compile(r"weft[: ]+weft")


@pytest.fixture(params=PATHS)
def path(request):
    return PATHS[request.param]


# What ranks run.


def bad_arguments() -> None:
    import pytest as pt
    import torch
    import torch.distributed as dist

    size, group = dist.get_world_size(), dist.group.WORLD
    with pt.raises(RuntimeError, match=r"all_reduce.*Float8_e4m3fn.*cannot|moved.*not reduced"):
        dist.all_reduce(torch.zeros(2).to(torch.float8_e4m3fn))
    with pt.raises(RuntimeError, match="no meaning"):
        dist.all_reduce(torch.zeros(2), dist.ReduceOp.BAND)
    with pt.raises(RuntimeError, match=r"all_gather.*for each of the"):
        group.allgather([[torch.zeros(2)]], [torch.zeros(2)]).wait()
    with pt.raises(RuntimeError, match="one type"):
        group.allgather([[torch.zeros(2).int()] * size], [torch.zeros(2)]).wait()
    with pt.raises(RuntimeError, match="elements"):
        group.allgather([[torch.zeros(3)] * size], [torch.zeros(2)]).wait()
    with pt.raises(RuntimeError, match="root rank must be from 0"):
        group.broadcast(torch.zeros(1), size).wait()
    with pt.raises(RuntimeError, match="add up to"):
        dist.all_to_all_single(torch.zeros(2), torch.zeros(2), [1] * size, [7] * size)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # nothing has changed
    assert tensor.item() == size


def all_reduce_of(numel: int, seconds: float | None = None) -> float:
    """An all_reduce; when it fails, the time is in the text."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    options = dist.AllreduceOptions()
    if seconds is not None:
        options.timeout = timedelta(seconds=seconds)
    started = time.monotonic()
    try:
        dist.group.WORLD.allreduce([torch.ones(numel)], options).wait()
    except RuntimeError as error:
        raise RuntimeError(f"after {time.monotonic() - started:.2f} s: {error}") from None
    return time.monotonic()


def wait_in(name: str) -> None:
    """An operation that cannot complete while some rank stays away."""
    import torch
    import torch.distributed as dist

    size, here = dist.get_world_size(), dist.get_rank()
    one, many = torch.ones(8), [torch.ones(8) for _ in range(size)]
    {
        "all_reduce": lambda: dist.all_reduce(one),
        "async all_reduce": lambda: dist.all_reduce(one, async_op=True).wait(),
        "barrier": dist.barrier,
        "all_gather": lambda: dist.all_gather(many, one),
        "all_to_all": lambda: dist.all_to_all(many, [t.clone() for t in many]),
        "reduce_scatter": lambda: dist.reduce_scatter(one, many),
        "recv": lambda: dist.recv(one, size - 1),
        "monitored_barrier": lambda: dist.monitored_barrier(),
    }[name]()
    raise AssertionError(f"{name} on rank {here} completed without the last rank")


def wait_and_time(name: str) -> tuple[str, float]:
    try:
        wait_in(name)
    except RuntimeError as error:
        return str(error), time.monotonic()
    raise AssertionError


def leave_and_keep() -> float:
    """Destroys the group amid a callback of one of its operations, and keeps it in a variable."""
    import torch
    import torch.distributed as dist

    global _kept
    _kept = dist.group.WORLD
    took: list[float] = []

    def destroy(_) -> None:
        started = time.monotonic()
        dist.destroy_process_group()
        took.append(time.monotonic() - started)

    dist.all_reduce(torch.ones(4), async_op=True).get_future().then(destroy).wait()
    return took[0]


def wait_until_ctrl_c(name: str) -> tuple[str, float]:
    return ended_by(lambda: wait_in(name), name)


def meet_until_ctrl_c(rank: int, world: int, meeting: str) -> tuple[str, float]:
    return ended_by(lambda: meet(rank, world, meeting, 60.0, "weft"), "meeting")


def abort_soon() -> None:
    import torch
    import torch.distributed as dist

    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    threading.Timer(0.3, backend.abort).start()


def send_small_and_give_up() -> str:
    """A message that the system cannot take yet, for the other rank is stopped."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    try:
        dist.isend(torch.ones(4), 1).wait(timedelta(seconds=0.5))
    except RuntimeError as error:
        return str(error)
    raise AssertionError


def receive_none() -> str:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    try:
        dist.irecv(torch.ones(4), 0).wait(timedelta(seconds=3))
    except RuntimeError as error:
        return str(error)
    raise AssertionError("what was given up has arrived")


def wait_profiled(name: str) -> tuple[str, float]:
    """A profiled operation is queued, and runs on the group's own thread."""
    import torch

    with torch.profiler.profile():
        return wait_until_ctrl_c(name)


def wait_for_a_batch() -> float:
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    group = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    for _ in range(3):
        group.allreduce([torch.ones(2)])
    work = group._end_coalescing(torch.device("cpu"))
    began = time.monotonic()
    try:
        work.wait(timedelta(seconds=0.5))
    except RuntimeError:
        return time.monotonic() - began
    raise AssertionError


def late_barrier(wait_all: bool) -> None:
    from datetime import timedelta

    import torch.distributed as dist

    dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=wait_all)


def wrong_sizes() -> None:
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.send(torch.ones(4), 1)
    elif dist.get_rank() == 1:
        dist.recv(torch.ones(3), 0)


def wrong_types() -> None:
    """Of as many bytes."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        dist.send(torch.ones(4), 1)
    elif dist.get_rank() == 1:
        dist.recv(torch.ones(4, dtype=torch.int32), 0)


def recv_timeout() -> str:
    import torch
    import torch.distributed as dist

    dist.distributed_c10d._set_pg_timeout(dist.distributed_c10d.timedelta(seconds=0.5))
    try:
        dist.recv(torch.ones(1), 1)
    except RuntimeError as error:
        return str(error)
    raise AssertionError


def threads() -> list[str]:
    import pathlib

    names = []
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append((task / "comm").read_text().strip())
    return names


def test_bad_arguments_change_nothing():
    with Ranks(2) as ranks:
        ranks.all(bad_arguments)


@pytest.mark.parametrize(
    "operation",
    [
        "all_reduce",
        "async all_reduce",
        "barrier",
        "all_gather",
        "all_to_all",
        "reduce_scatter",
        "recv",
    ],
)
def test_a_dead_rank_fails_all_survivors_soon(path, operation):
    with Ranks(3, path) as ranks:
        ranks.all(all_reduce_of, 10)
        for rank in (0, 1):
            ranks[rank].start(wait_and_time, operation)
        for rank in (0, 1):
            assert not ranks[rank].has_answered_within(0.15), f"{rank} went on without rank 2"
        killed = time.monotonic()
        ranks[2].kill()
        for rank in (0, 1):
            text, ended = ranks[rank].result()
            assert "rank 2" in text and not SAID_TWICE.search(text), text
            assert ended - killed < SOON, f"{ended - killed:.2f} s: {text}"
        if operation == "recv":
            return
        for rank in (0, 1):  # what comes later fails at once, with the same reason
            started = time.monotonic()
            assert "rank 2" in ranks[rank].fails(wait_in, "all_reduce").message
            assert time.monotonic() - started < SOON


def test_a_rank_that_leaves_in_a_callback_and_keeps_the_group_is_named(path):
    with Ranks(2, path) as ranks:
        ranks[0].start(all_reduce_of, 4)
        ranks[1].start(leave_and_keep)
        ranks[0].result()
        assert ranks[1].result() < SOON
        started = time.monotonic()
        text = ranks[0].fails(wait_in, "all_reduce").message
        assert time.monotonic() - started < SOON
        assert "rank 1" in text and ("left" in text or "shut down" in text), text


def test_a_late_rank_is_named(path):
    with Ranks(3, path) as ranks:
        for rank in (0, 1):
            ranks[rank].start(all_reduce_of, 10, 0.5)
        for rank in (0, 1):
            text = ranks[rank].failure().message
            assert "Timed out" in text or "timed out" in text, text
            assert "rank" in text and "2" in text.split("s:", 1)[1], text


def test_the_groups_timeout_can_be_set():
    with Ranks(2) as ranks:
        text = ranks[0].call(recv_timeout)
        assert "Timed out waiting 500ms" in text and "rank 1" in text


@pytest.mark.parametrize("operation", ["all_reduce", "async all_reduce", "recv"])
def test_abort_unblocks(path, operation):
    with Ranks(2, path) as ranks:
        ranks.all(all_reduce_of, 10)
        ranks[0].call(abort_soon)
        text = ranks[0].fails(wait_in, operation, timeout=10).message
        assert "abort" in text, text


@pytest.mark.parametrize(
    "operation", ["all_reduce", "async all_reduce", "barrier", "recv", "monitored_barrier"]
)
def test_ctrl_c_ends_a_wait(path, operation):
    delays = Delays()
    for _ in range(3):
        with Ranks(2, path) as ranks:
            ranks.all(all_reduce_of, 10)
            delays.add(ranks[0], wait_until_ctrl_c, operation)
            if operation != "barrier":
                continue
            error = ranks[1].fails(wait_in, operation, timeout=10)
            if error.kind == "AssertionError":  # rank 0's part had come already: the next one fails
                error = ranks[1].fails(wait_in, operation, timeout=10)
            assert error.kind == "DistBackendError"
            assert "rank 0 was interrupted" in error.message, error.message
    delays.check()


def test_ctrl_c_ends_a_queued_operation_for_all(path):
    with Ranks(2, path) as ranks:
        ranks.all(all_reduce_of, 10)
        delay(ranks[0], wait_profiled, "all_reduce")
        for _ in range(2):  # rank 0's part of the first may have come
            error = ranks[1].fails(wait_in, "all_reduce", timeout=10)
            if error.kind != "AssertionError":
                break
        assert "rank 0 was interrupted" in error.message, error.message


def test_a_small_send_that_was_given_up_does_not_arrive(path):
    with Ranks(2, path) as ranks:
        ranks[1].signal(signal.SIGSTOP)
        assert "Timed out waiting 500ms" in ranks[0].call(send_small_and_give_up)
        os.kill(ranks[1].pid, signal.SIGCONT)
        assert "rank 0" in ranks[1].call(receive_none)


def test_a_batch_is_waited_for_once(path):
    with Ranks(2, path) as ranks:
        assert ranks[0].call(wait_for_a_batch) < 1.0


def test_ctrl_c_ends_init_process_group():
    delays = Delays()
    for _ in range(3):
        with Workers(1) as ranks:
            delays.add(ranks[0], meet_until_ctrl_c, 0, 2, ranks.meeting)
    delays.check()


def test_monitored_barrier_names_the_missing():
    with Ranks(4) as ranks:
        for wait_all, wanted in ((False, "[Rank 0]: Rank 1 failed to pass"), (True, "Ranks 1, 2")):
            for rank in (0, 3):
                ranks[rank].start(late_barrier, wait_all)
            assert wanted in ranks[0].failure().message
            assert "successfully reached monitoredBarrier" in ranks[3].failure().message
        ranks.all(all_reduce_of, 10)


def test_a_message_of_the_wrong_size_fails_the_receiver():
    with Ranks(2) as ranks:
        ranks[0].start(wrong_sizes)
        assert "rank 0" in ranks[1].fails(wrong_sizes).message
        ranks[0].result()
        ranks.all(all_reduce_of, 10)


def test_a_message_of_another_type_fails_the_receiver():
    with Ranks(2) as ranks:
        ranks[0].start(wrong_types)
        wanted = "rank 0 sent 16 bytes of float32 where 16 of int32 were expected"
        assert wanted in ranks[1].fails(wrong_types).message
        ranks[0].result()
        ranks.all(all_reduce_of, 10)


def fail_in(operation: str) -> None:
    import torch
    import torch.distributed as dist

    if operation == "all_gather":
        dist.all_gather([torch.ones(2)] * dist.get_world_size(), torch.ones(2))
    elif operation == "async all_reduce":
        dist.all_reduce(torch.ones(2, 3), async_op=True).wait()
    elif operation == "barrier":
        dist.barrier()
    else:
        dist.recv(torch.ones(4, dtype=torch.int64), 1)


@pytest.mark.parametrize(
    ("operation", "called"),
    [
        ("all_gather", "all_gather float32[2]"),
        ("async all_reduce", "all_reduce float32[2, 3]"),
        ("barrier", "barrier"),
        ("recv", "recv int64[4]"),
    ],
)
@pytest.mark.parametrize("cause", ["timeout", "loss"])
def test_an_error_says_what_was_called(path, operation, called, cause):
    with Ranks(2, path, timeout=1.0 if cause == "timeout" else 30.0) as ranks:
        if cause == "loss":
            ranks[1].kill()
        error = ranks[0].fails(fail_in, operation)
        assert error.kind == "DistBackendError"
        assert f"({called} in the default process group)" in error.message, error.message
        assert error.message.count("in the default process group") == 1


def test_missing_ranks_are_named_when_the_group_forms():
    with Workers(2) as workers:
        for rank in (0, 2):
            workers[rank // 2].start(meet, rank, 4, workers.meeting, 5.0, "weft")
        for worker in workers:
            text = worker.failure().message
            assert "the default process group of size 4: " in text and "ranks 1, 3" in text, text
            assert not SAID_TWICE.search(text), text


def test_the_death_of_the_stores_server_is_said():
    with Workers(2) as workers:
        meeting = f"tcp://127.0.0.1:{free_port()}"
        for rank, worker in enumerate(workers):
            worker.start(meet, rank, 3, meeting, 30.0, "weft")
        said = workers[1].wait_for_output("waits for rank")  # after ten seconds
        assert "the default process group of size 3: rank 1 waits for rank" in said, said
        workers[0].kill()
        error = workers[1].failure()
        assert "the process that serves it (usually rank 0) has ended" in error.message


def test_threads_come_with_the_group_and_go_with_it():
    with Workers(2) as workers:
        before = len(workers[0].call(threads))
        for round_number in range(3):
            for rank, worker in enumerate(workers):
                worker.start(meet, rank, 2, f"{workers.meeting}{round_number}", 20.0, "weft")
            for worker in workers:
                worker.result()
            workers.all(all_reduce_of, 10)
            during = workers[0].call(threads)
            assert any(name.startswith("weft") for name in during)
            workers.all(leave)
        after = workers[0].call(threads)
        assert not [name for name in after if name.startswith("weft")], after
        assert len(after) <= before + 2, after


def test_a_stopped_rank_times_out_rather_than_hangs(path):
    with Ranks(2, path) as ranks:
        ranks.all(all_reduce_of, 10)
        ranks[1].signal(signal.SIGSTOP)
        text = ranks[0].fails(all_reduce_of, 10, 3.0).message
        assert "rank 1" in text, text
        os.kill(ranks[1].pid, signal.SIGCONT)
