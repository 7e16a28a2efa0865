"""Groups on two hosts: network namespaces of this machine, two ranks in each, a cable between them.

Needs root; skipped, with the reason, where namespaces are not permitted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

BOUND = 120.0  # seconds: only keeps a broken test from hanging
WORLD = 4

OPERATIONS = """
    ranks = range(size)
    mine = torch.arange(5.0) + rank
    total = mine.clone()
    dist.all_reduce(total)
    assert torch.equal(total, sum(torch.arange(5.0) + r for r in ranks))
    large = torch.full((1_000_003,), float(rank), dtype=torch.bfloat16)
    dist.all_reduce(large, dist.ReduceOp.AVG)
    assert torch.equal(large, torch.full_like(large, 1.5))
    whole = [torch.empty(5) for _ in ranks]
    dist.all_gather(whole, mine)
    assert all(torch.equal(whole[r], torch.arange(5.0) + r) for r in ranks)
    flat = torch.empty(20)
    dist.all_gather_into_tensor(flat, mine)
    assert torch.equal(flat, torch.cat(whole))
    share = torch.empty(5)
    dist.reduce_scatter_tensor(share, flat)
    assert torch.equal(share, size * mine)
    back = torch.empty(4)
    dist.all_to_all_single(back, torch.arange(4.0) + 10 * rank)
    assert torch.equal(back, torch.arange(4.0) * 10 + rank)
    for root in ranks:
        sent = torch.full((70_000,), float(rank))
        dist.broadcast(sent, root)
        assert torch.equal(sent, torch.full_like(sent, float(root)))
        summed = mine.clone()
        dist.reduce(summed, root)
        assert torch.equal(summed, total if rank == root else mine)
        gathered = [torch.empty(5) for _ in ranks] if rank == root else None
        dist.gather(mine, gathered, root)
        assert rank != root or all(torch.equal(a, b) for a, b in zip(gathered, whole))
        part = torch.empty(5)
        dist.scatter(part, whole if rank == root else None, root)
        assert torch.equal(part, mine)
    ahead, behind = (rank + 1) % size, (rank - 1) % size
    got = torch.empty(300_000)
    work = dist.isend(torch.full((300_000,), float(rank)), ahead)
    dist.recv(got, behind)
    work.wait()
    assert torch.equal(got, torch.full_like(got, float(behind)))
    said = [None] * size
    dist.all_gather_object(said, {"rank": rank})
    assert said == [{"rank": r} for r in ranks]
    dist.monitored_barrier()
    print("path:", dist.group.WORLD._get_backend(torch.device("cpu")).path)
    dist.destroy_process_group()
"""

PULLED = """
    dist.all_reduce(torch.ones(1000))
    print("ready", flush=True)
    input()  # until the cable is pulled
    try:
        dist.all_reduce(torch.ones(1000))
    except dist.DistBackendError as error:
        print("error:", str(error).splitlines()[0])
"""


def run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, timeout=20)


def address(host: int) -> str:
    return f"10.213.78.{host + 1}"


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    names = [f"weft{os.getpid() % 100000}p{host}" for host in range(2)]
    # Takes them away when this process lets go of the pipe, be it by being killed.
    removal = "; ".join(f"ip netns del {name}" for name in names)
    keeper = subprocess.Popen(
        ["sh", "-c", f"cat >/dev/null; {removal}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        try:
            for name in names:
                run(f"ip netns add {name}")
            run(f"ip -n {names[0]} link add uplink type veth peer name uplink netns {names[1]}")
            for host, name in enumerate(names):
                run(f"ip -n {name} addr add {address(host)}/24 dev uplink")
                run(f"ip -n {name} link set uplink up")
                run(f"ip -n {name} link set lo up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"this machine permits no network namespaces here: {error}")
        yield names
    finally:
        keeper.communicate(timeout=20)


def start(hosts: list[str], body: str) -> list[subprocess.Popen]:
    """Ranks 0 and 1 on the first host, 2 and 3 on the second."""
    script = (
        "import torch, torch.distributed as dist, weft\n"
        "torch.set_num_threads(1)\n"
        "dist.init_process_group('weft')\n"
        "rank, size = dist.get_rank(), dist.get_world_size()\n"
    ) + textwrap.dedent(body)
    ranks = []
    for rank in range(WORLD):
        environment = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": address(0),
            "MASTER_PORT": "29531",  # free: the namespace is ours alone
        }
        ranks.append(
            subprocess.Popen(
                ["ip", "netns", "exec", hosts[rank // 2], sys.executable, "-c", script],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return ranks


def finish(ranks: list[subprocess.Popen]) -> list[str]:
    outputs = []
    try:
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=BOUND)
            assert process.returncode == 0, f"rank {rank}: {err[-3000:]}"
            outputs.append(out)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return outputs


def test_every_operation_between_hosts(hosts):
    for output in finish(start(hosts, OPERATIONS)):
        assert "path: shared memory inside 2 hosts" in output


def test_a_pulled_cable_is_the_loss_of_the_ranks_behind_it(hosts):
    ranks = start(hosts, PULLED)
    for process in ranks:
        assert process.stdout.readline() == "ready\n"
    run(f"ip -n {hosts[1]} link set uplink down")
    for process in ranks:
        process.stdin.write("\n")
        process.stdin.flush()
    for rank, output in enumerate(finish(ranks)):
        others = (2, 3) if rank < 2 else (0, 1)
        assert any(f"rank {other}" in output for other in others), (rank, output)
