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
from namespaces import address, joined_hosts, run

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

TWO_GROUPS = """
    again = dist.new_group(range(size), backend="weft")
    dist.all_reduce(torch.ones(3), group=again)
    dist.destroy_process_group()
"""

TWICE_RPC = """
    import torch.distributed.rpc as rpc
    for port in (29532, 29533):
        os.environ["MASTER_PORT"] = str(port)
        weft.init_rpc(f"worker{rank}", rank=rank, world_size=size)
        rpc.rpc_sync(f"worker{(rank + 1) % size}", torch.add, args=(torch.ones(1), 1))
        rpc.shutdown()
"""

KEY_IN_STORE = "this group spans hosts, and its key is in the Store"


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    with joined_hosts(2) as names:
        yield names


def start(hosts: list[str], body: str, group: bool = True, **more: str) -> list[subprocess.Popen]:
    """Ranks 0 and 1 on the first host, 2 and 3 on the second; `more`: of the environment."""
    script = (
        "import os, torch, torch.distributed as dist, weft\n"
        "torch.set_num_threads(1)\n"
        f"if {group}: dist.init_process_group('weft')\n"
        "rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
    ) + textwrap.dedent(body)
    ranks = []
    for rank in range(WORLD):
        environment = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": address(0),
            "MASTER_PORT": "29531",  # free: the namespace is ours alone
            **more,
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
    return [out for out, _ in said_by(ranks)]


def said_by(ranks: list[subprocess.Popen]) -> list[tuple[str, str]]:
    """What each rank wrote to stdout and to stderr, until it ended well."""
    outputs = []
    try:
        for rank, process in enumerate(ranks):
            out, err = process.communicate(timeout=BOUND)
            assert process.returncode == 0, f"rank {rank}: {err[-3000:]}"
            outputs.append((out, err))
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
    run(f"ip -n {hosts[1]} link set to0 down")
    for process in ranks:
        process.stdin.write("\n")
        process.stdin.flush()
    for rank, output in enumerate(finish(ranks)):
        others = (2, 3) if rank < 2 else (0, 1)
        assert any(f"rank {other}" in output for other in others), (rank, output)


@pytest.mark.parametrize("what", ["process groups", "rpc"])
def test_a_key_in_the_store_is_told_once_where_a_group_spans_hosts(hosts, what, tmp_path):
    body, group = {"process groups": (TWO_GROUPS, True), "rpc": (TWICE_RPC, False)}[what]
    for _, said in said_by(start(hosts, body, group)):
        assert said.count(KEY_IN_STORE) == 1, said
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text("5a" * 32)
    for _, said in said_by(start(hosts, body, group, WEFT_AUTH_KEY_FILE=str(key))):
        assert KEY_IN_STORE not in said


def test_a_key_in_the_store_is_not_told_within_one_host(hosts):
    for _, said in said_by(start([hosts[0]] * 2, TWO_GROUPS)):
        assert KEY_IN_STORE not in said
