"""A real Prometheus scrapes two workers: it takes their text, and answers the board's queries."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from waiting import takes, wait_until
from workers import Group

ROOT = Path(__file__).resolve().parents[2]
BOARD = ROOT / "examples/observe/grafana.json"
# What Grafana puts in place of its variable: four scrapes.
RATES = ("$__rate_interval", "4s")
QUERIES = [
    target["expr"]
    for panel in json.loads(BOARD.read_text())["panels"]
    for target in panel["targets"]
]


def needs(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    return found


def join_process_group(rank: int, meeting: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("weft", init_method=f"{meeting}-group", rank=rank, world_size=2)


def echo(value):
    return value


def traffic(to: str, late: bool, seconds: float) -> None:
    """Calls of all kinds, and collectives to which one rank comes late."""
    import time

    import torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc

    end = time.monotonic() + seconds
    goes_on = torch.ones(1)
    while goes_on.item():
        if late:
            takes(0.02)
        goes_on.fill_(time.monotonic() < end)
        dist.all_reduce(goes_on, op=dist.ReduceOp.MIN)
        rpc.rpc_sync(to, echo, args=(1,))
        rpc.rpc_sync(to, torch.add, args=(torch.ones(1 << 20), 1))
        rpc.remote(to, echo, args=(1,)).to_here()


@contextlib.contextmanager
def prometheus(folder: Path, targets: list[int]) -> Iterator[str]:
    """The address of one that asks these ports each second."""
    port = free_port()
    addresses = ", ".join(f'"127.0.0.1:{target}"' for target in targets)
    config = folder / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: weft, static_configs: [{{targets: [{addresses}]}}]}}]\n"
    )
    command = [
        needs("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def answer(address: str, query: str) -> list[Any]:
    asked = urllib.parse.urlencode({"query": query.replace(*RATES)})
    with urllib.request.urlopen(f"{address}/api/v1/query?{asked}", timeout=10) as page:
        return json.load(page)["data"]["result"]


def scrapes(address: str) -> int:
    """Of the target that was asked the fewest times."""
    with contextlib.suppress(OSError):
        counts = [int(one["value"][1]) for one in answer(address, "count_over_time(up[1m])")]
        return min(counts, default=0)
    return 0


def port_of_metrics() -> int:
    from weft._observe import exporter

    return exporter.address()[1]


def test_each_query_of_the_board_has_an_answer(tmp_path):
    needs("prometheus")
    with Group(2, {"WEFT_METRICS": "127.0.0.1:0"}) as group:
        for rank, member in enumerate(group):
            member.start(join_process_group, rank, group.meeting)
        for member in group:
            member.result()
        ports = [member.call(port_of_metrics) for member in group]
        with prometheus(tmp_path, ports) as at:
            wait_until(lambda: scrapes(at) >= 1, "Prometheus asks both workers")
            for rank, member in enumerate(group):
                member.start(traffic, f"worker{1 - rank}", rank == 1, 8.0)
            wait_until(lambda: scrapes(at) >= 6, "Prometheus has asked them several times")
            found = {query: answer(at, query) for query in QUERIES}
        for member in group:
            member.result()
        group.shutdown()
    # Of what has gone wrong the answers are 0.
    assert [query for query, series in found.items() if not series] == []
    numbers = {query: [float(one["value"][1]) for one in series] for query, series in found.items()}
    assert [query for query, one in numbers.items() if "rate(" in query and not any(one)] == []


def test_prometheus_own_checker_has_nothing_to_say(tmp_path):
    checker = needs("promtool")
    with Group(2) as group:
        text = group[0].call(metrics_text)
        group.shutdown()
    done = subprocess.run(
        [checker, "check", "metrics"], input=text, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def metrics_text() -> str:
    import weft

    return weft.metrics_text()
