"""RPC and process groups whose connections are TLS: by the group's key file, and by certificates."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from workers import Group, WorkerError, Workers, join, leave

SIZES = (1, 70_000, 1_000_000)  # a record, some records, both connections
OPENSSL = shutil.which("openssl")


def over_tcp(folder: Path, **more: str) -> dict[str, str]:
    """What makes two processes of one host talk as if they were on two, with a key file."""
    key = folder / "group.key"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)
    return {
        "WEFT_AUTH_KEY_FILE": str(key),
        "WEFT_UNIX_SOCKET": "0",
        "WEFT_SHARED_MEMORY": "0",
        **more,
    }


def openssl(*arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], check=True, capture_output=True)


def certificate(folder: Path, name: str) -> dict[str, str]:
    """A certificate for `name`, signed by the folder's one authority."""
    authority = ("-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key", "-CAcreateserial")
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    if not (folder / "ca.crt").exists():
        made = ("-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt")
        openssl("req", "-x509", *new, *made, "-subj", "/CN=authority", "-days", "1")
    stem = f"{folder}/{name}"
    openssl("req", *new, "-keyout", f"{stem}.key", "-out", f"{stem}.csr", "-subj", f"/CN={name}")
    openssl("x509", "-req", "-in", f"{stem}.csr", *authority, "-out", f"{stem}.crt", "-days", "1")
    Path(f"{stem}.key").chmod(0o600)
    return {
        "WEFT_TLS_CERT": f"{stem}.crt",
        "WEFT_TLS_KEY": f"{stem}.key",
        "WEFT_TLS_CA": f"{folder}/ca.crt",
    }


def doubled_there(to: str) -> bool:
    """Whether tensors of all sizes come back twice as large."""
    import torch
    import torch.distributed.rpc as rpc

    for size in SIZES:
        sent = torch.randn(size)
        if not torch.equal(rpc.rpc_sync(to, torch.mul, args=(sent, 2)), sent * 2):
            return False
    return True


def summed(rank: int, size: int, meeting: str) -> bool:
    """Whether a process group over Weft adds up tensors of all sizes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("weft", init_method=meeting, rank=rank, world_size=size)
    right = True
    for count in SIZES:
        tensor = torch.full((count,), rank + 1.0)
        dist.all_reduce(tensor)
        right = right and bool((tensor == size * (size + 1) / 2).all())
    dist.destroy_process_group()
    return right


@contextlib.contextmanager
def joined(
    environment: dict[str, str], each: list[dict[str, str]], graceful: bool = True
) -> Iterator[Workers]:
    """An RPC group whose workers have something in their environment that differs."""
    with Workers(0, environment) as workers:
        for rank, own in enumerate(each):
            workers.add(own).start(join, rank, len(each), workers.meeting)
        for worker in workers:
            worker.result()
        yield workers
        workers.all(leave, graceful=graceful)


@pytest.mark.parametrize("encryption", ["on", "off"])
def test_calls_by_the_key_file(tmp_path, encryption) -> None:
    with Group(2, over_tcp(tmp_path, WEFT_ENCRYPTION=encryption)) as group:
        assert group[0].call(doubled_there, "worker1")
        assert group[1].call(doubled_there, "worker0")
        group.shutdown()


def test_a_process_group_by_the_key_file(tmp_path) -> None:
    with Workers(2, over_tcp(tmp_path, WEFT_ENCRYPTION="on")) as ranks:
        for rank, worker in enumerate(ranks):
            worker.start(summed, rank, 2, ranks.meeting)
        assert [worker.result() for worker in ranks] == [True, True]


def test_who_has_it_off_is_not_called_by_who_requires_it(tmp_path) -> None:
    each = [{"WEFT_ENCRYPTION": "on"}, {"WEFT_ENCRYPTION": "off"}]
    with joined(over_tcp(tmp_path), each, graceful=False) as group:
        for rank, peer in ((0, "worker1"), (1, "worker0")):
            with pytest.raises(WorkerError, match="WEFT_ENCRYPTION"):
                group[rank].call(doubled_there, peer)


def test_all_leave_at_once_though_two_of_three_refuse_each_other(tmp_path) -> None:
    """The third worker has lost nobody: it hears of the others' loss, and does not wait for them."""
    each = [{"WEFT_ENCRYPTION": "on"}, {"WEFT_ENCRYPTION": "auto"}, {"WEFT_ENCRYPTION": "off"}]
    with joined(over_tcp(tmp_path), each) as group:
        with pytest.raises(WorkerError, match="WEFT_ENCRYPTION"):
            group[0].call(doubled_there, "worker2")
        began = time.monotonic()
    assert time.monotonic() - began < 10


@pytest.mark.skipif(OPENSSL is None, reason="the command openssl makes the certificates")
class TestCertificates:
    @pytest.fixture
    def each(self, tmp_path) -> list[dict[str, str]]:
        return [certificate(tmp_path, f"worker{rank}") for rank in range(2)]

    def test_calls(self, tmp_path, each) -> None:
        with joined(over_tcp(tmp_path, WEFT_ENCRYPTION="on"), each) as group:
            assert group[0].call(doubled_there, "worker1")

    def test_a_worker_without_its_name(self, tmp_path, each) -> None:
        with (
            pytest.raises(Exception, match="worker0"),
            joined(over_tcp(tmp_path, WEFT_ENCRYPTION="on"), each[::-1]),
        ):
            pass

    def test_a_process_group(self, tmp_path, each) -> None:
        with Workers(0, over_tcp(tmp_path, WEFT_ENCRYPTION="on")) as ranks:
            for rank, own in enumerate(each):
                ranks.add(own).start(summed, rank, 2, ranks.meeting)
            assert [worker.result() for worker in ranks] == [True, True]
