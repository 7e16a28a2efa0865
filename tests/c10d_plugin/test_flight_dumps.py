"""The flight records that ranks write when something fails, read by torch's own analysis."""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from ports import free_port
from ranks import Ranks, leave, meet
from waiting import wait_until
from workers import Workers

from weft._torch.patches.flight_recorder import torch_records

pytestmark = pytest.mark.skipif(
    torch_records(), reason="this torch records groups of any backend itself"
)


def prepare() -> None:
    import torch
    import torch.distributed as dist

    everyone = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_reduce(torch.ones(2))
    dist.all_gather(everyone, torch.ones(2))
    dist.barrier()


def skipped_by_rank_1() -> None:
    """One rank never comes to the all_reduce: it waits for something else."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        threading.Event().wait(60)
    else:
        dist.all_reduce(torch.ones(4))  # the line that the analysis names


def wait() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(2))


def abort() -> None:
    import torch
    import torch.distributed as dist

    work = dist.all_reduce(torch.ones(2), async_op=True)
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    with pytest.raises(RuntimeError):
        work.wait()


def serve_debug_pages() -> int:
    """Only what a rank beyond 0 does: rank 0's pages need packages that Weft does not."""
    import torch.distributed as dist
    from torch.distributed import debug

    os.environ.update(RANK="1", WORLD_SIZE="2")
    port = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ["MASTER_PORT"] = str(port.port)
    debug.start_debug_server()
    return debug._WORKER_SERVER.port


def line_of(function, text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def dumped(folder: Path, rank: int) -> dict:
    return pickle.loads((folder / f"rank_{rank}").read_bytes())


def wait_for(folder: Path, *ranks: int) -> None:
    wait_until(
        lambda: all((folder / f"rank_{rank}").exists() for rank in ranks),
        lambda: f"there are records of ranks {ranks}, and there are {os.listdir(folder)}",
        60.0,
    )


@pytest.fixture
def folder(tmp_path):
    """For the records alone, as torch's analysis wants it."""
    place = tmp_path / "flight"
    place.mkdir()
    return place


def recording(folder: Path) -> dict[str, str]:
    return {"TORCH_FR_DUMP_TEMP_FILE": f"{folder}/rank_"}


def analysed(folder: Path, *options: str) -> str:
    """What torch's analysis prints."""
    found = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder), *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def test_torchs_analysis_names_the_rank_that_hangs_and_the_line(folder):
    with Ranks(3, recording(folder), timeout=2.0) as ranks:
        ranks.all(prepare)
        for rank in range(3):
            ranks[rank].start(skipped_by_rank_1)
        for rank in (0, 2):
            assert "rank 1" in ranks[rank].failure().message
        wait_for(folder, 0, 1, 2)
        said = analysed(folder)
        assert "Not all ranks joining collective, sequence number: 4" in said
        assert "missing ranks: {1}" in said
        line = line_of(skipped_by_rank_1, "the line that the analysis names")
        assert f"{Path(__file__).name}:{line}" in said
        ranks[1].kill()


def exchange() -> None:
    """Messages that meet, of all kinds, in an order that only tags and ranks tell."""
    import torch
    import torch.distributed as dist

    others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
    works = [dist.isend(torch.ones(rank + 1), rank, tag=rank) for rank in others]
    for rank in reversed(others):
        dist.recv(torch.empty(dist.get_rank() + 1), rank, tag=dist.get_rank())
    for work in works:
        work.wait()


def awaits_rank_1() -> None:
    """Ranks 0 and 2 take part in what precedes; rank 1 sends nothing."""
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 2:
        dist.recv(torch.empty(4), 1)  # the line that waits


def test_torchs_analysis_names_the_rank_that_sends_nothing(folder):
    with Ranks(3, recording(folder), timeout=2.0) as ranks:
        ranks.all(prepare)
        ranks.all(exchange)
        ranks[2].start(awaits_rank_1)
        said = ranks[2].failure().message
        line = line_of(awaits_rank_1, "the line that waits")
        assert "(recv float32[4] in the default process group)" in said
        wait_for(folder, 0, 1, 2)
        said = analysed(folder)
        assert said.count("Not all ranks joining collective") == 1
        assert "collective: nccl:recv 1<-0" in said
        assert "group info: 0: rank 1 to rank 2:messages in default_pg" in said
        assert "missing ranks: {1}" in said
        assert f"{Path(__file__).name}:{line}" in said


def test_what_went_well_has_no_mismatch(folder):
    with Ranks(2, recording(folder)) as ranks:
        ranks.all(prepare)
        ranks.all(exchange)
        for worker in ranks:
            worker.call(write)
        said = analysed(folder, "-v")
        assert "Not all ranks" not in said
        assert "has errors" not in said
        ranks.all(leave)


def write() -> str:
    import weft

    return str(weft.dump_flight_record())


def test_sigusr2_writes_the_record_while_a_rank_hangs(folder):
    with Ranks(2, recording(folder)) as ranks:
        ranks[0].start(wait)

        def recorded() -> bool:
            os.kill(ranks[0].pid, signal.SIGUSR2)
            return (folder / "rank_0").exists() and bool(dumped(folder, 0)["entries"])

        wait_until(recorded, "the all_reduce is in the record")
        record = dumped(folder, 0)
        (entry,) = record["entries"]
        assert (entry["profiling_name"], entry["state"]) == ("nccl:all_reduce", "started")
        assert record["stacks"].startswith("MainThread:\n")
        assert f"in {wait.__name__}\n" in record["stacks"]
        ranks[1].call(wait)
        ranks[0].result()


ENDS_BY_A_COLLECTIVE = """
import datetime, sys, time
import torch, torch.distributed as dist, weft
dist.init_process_group("weft", timeout=datetime.timedelta(seconds=2))
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    sys.stdin.read()
else:
    dist.all_reduce(torch.ones(4))
"""


def test_a_program_that_a_failure_ends_leaves_the_records_of_all(folder):
    environment = {**os.environ, **recording(folder), "WORLD_SIZE": "3"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", ENDS_BY_A_COLLECTIVE],
            env={**environment, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    said = [programs[rank].communicate(timeout=100)[1] for rank in (0, 2)]
    for rank, text in zip((0, 2), said, strict=True):
        assert programs[rank].returncode == 1 and "rank 1" in text, text
    wait_for(folder, 0, 1, 2)
    programs[1].communicate(timeout=100)
    assert dumped(folder, 0)["entries"][-1]["frames"], "it has the stacks"


def test_a_failure_is_counted_without_the_record():
    with Ranks(2, {"TORCH_FR_BUFFER_SIZE": "0"}, timeout=1.0) as ranks:
        assert ranks[0].call(failures) == 0
        for count, asynchronous in enumerate((False, True), 1):
            said = ranks[0].fails(fail_alone, asynchronous).message
            assert "(all_reduce float32[4] in the default process group" in said
            assert ranks[0].call(failures) == count


def fail_alone(asynchronous: bool) -> None:
    import torch
    import torch.distributed as dist

    work = dist.all_reduce(torch.ones(4), async_op=asynchronous)
    if work is not None:
        work.wait()


def failures() -> int:
    from weft import _C

    return _C._failed_operations()


def test_a_lost_rank_writes_the_records_of_the_others(folder):
    with Ranks(3, recording(folder)) as ranks:
        ranks.all(prepare)
        ranks[0].start(wait)
        ranks[1].kill()
        assert "rank 1 died" in ranks[0].failure().message
        wait_for(folder, 0, 2)
        assert len(dumped(folder, 2)["entries"]) == 3


def test_an_abort_writes_the_record(folder):
    with Ranks(2, recording(folder)) as ranks:
        ranks[0].call(abort)
        wait_for(folder, 0, 1)
        assert dumped(folder, 0)["entries"][-1]["state"] != "completed"


def look_alone(meeting: str) -> None:
    """Joins an RPC group of its own, until the thread of the records has looked at its Store."""
    import weft
    from weft._observe import flight
    from weft._torch import current

    weft.init_rpc("alone", rank=0, world_size=1, init_method=meeting)
    store = current.agent().store
    wait_until(lambda: store.check([flight._KEY]), "the Store was looked at")


def test_a_rank_that_was_in_an_rpc_group_before_hears_of_records(folder):
    with Workers(2, recording(folder)) as ranks:
        ranks[0].call(look_alone, ranks.meeting + "-alone")
        for rank, one in enumerate(ranks):
            one.start(meet, rank, 2, ranks.meeting, 3.0, "weft")
        for one in ranks:
            one.result()
        ranks[1].fails(fail_alone, False)
        wait_for(folder, 0, 1)


def test_without_the_variable_nothing_is_written_and_no_thread_runs(folder):
    with Ranks(1) as ranks:
        assert "weft-flight" not in ranks[0].call(threads)
        assert "give a path, or set" in ranks[0].fails(write).message


def threads() -> list[str]:
    return [one.name for one in threading.enumerate()]


def test_the_debug_server_shows_the_operations():
    """Its page is what torch's frontend makes its tables of."""
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig

    with Ranks(2) as ranks:
        ranks.all(prepare)
        port = ranks[1].call(serve_debug_pages)
        url = f"http://localhost:{port}/handler/weft_fr_trace_json"
        with urllib.request.urlopen(url, data=b"", timeout=20) as answer:
            page = json.load(answer)
        options = JobConfig().parse_args(["--allow-incomplete-ranks"])
        details = {"rank1.json": {"rank": 1, "host_name": "here", **page}}
        database = build_db(details, options, page["version"])
        assert len(database.ncclcalls) == 3


def test_the_debug_servers_frontend_shows_the_operations():
    """With the packages that it needs, in a process of its own, as torch starts it."""
    pytest.importorskip("tabulate")
    pytest.importorskip("requests")
    with Ranks(1) as ranks:
        ranks[0].call(prepare)
        page = ranks[0].call(ask_frontend)
        assert "nccl:all_gather" in page


def ask_frontend() -> str:
    import torch.distributed as dist
    from ports import free_port
    from torch.distributed import debug

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_PORT=str(store.port))
    port = free_port()
    multiprocessing.current_process()._config["daemon"] = False  # else it may have no children
    debug.start_debug_server(port=port, start_method="spawn")
    pages: list[str] = []

    def answered() -> bool:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}/fr_trace", timeout=20) as answer:
                pages.append(answer.read().decode())
        except OSError:
            return False
        return True

    wait_until(answered, "the frontend answers")
    debug.stop_debug_server()
    return pages[0]
