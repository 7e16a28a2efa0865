"""The checks of ``weft.doctor``. Each returns what it found; none raises."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """One line: ``ok``, ``warn`` or ``FAIL``, and a sentence."""

    level: str
    text: str


SELF_TEST_SECONDS = 30
SELF_TEST = """
import sys, torch, torch.distributed.rpc as rpc, weft
rank, path = int(sys.argv[1]), sys.argv[2]
rpc.init_rpc(f"doctor{rank}", backend=rpc.BackendType.WEFT, rank=rank, world_size=2,
             rpc_backend_options=weft.RpcBackendOptions(init_method="file://" + path, rpc_timeout=30))
if rank == 0:
    assert rpc.rpc_sync("doctor1", torch.add, args=(torch.ones(1), 1)).item() == 2
rpc.shutdown()
"""


def versions() -> list[Finding]:
    """Python and torch, and the torch that Weft was built for."""
    import torch

    here = f"Python {platform.python_version()}, torch {torch.__version__}"
    built = built_for()
    findings = []
    if built is None:
        findings.append(Finding("ok", here))
    elif torch.__version__.startswith(f"{built}."):
        findings.append(Finding("ok", f"{here}; Weft was built for torch {built}"))
    else:
        text = (
            f"{here}, but Weft was built for torch {built}; rebuild it (WEFT_TORCH=… ./dev build)"
        )
        findings.append(Finding("FAIL", text))
    cores = f"{len(os.sched_getaffinity(0))} cores; CUDA devices: {torch.cuda.device_count()}"
    return [*findings, Finding("ok", cores)]


def built_for() -> str | None:
    """The minor version of torch that Weft was built for, such as ``2.11``; None when nothing says."""
    try:
        required = " ".join(importlib.metadata.requires("weft") or ())
    except importlib.metadata.PackageNotFoundError:
        required = ""
    # A wheel requires it; the staged package of a checkout lies in a folder named after it.
    wheel = re.search(r"torch \(==(\d+\.\d+)\.", required)
    staged = re.search(r"/torch-(\d+\.\d+)\.[^/]*/site/", f"{Path(__file__).absolute()}")
    found = wheel or staged
    return found[1] if found else None


def native_parts() -> list[Finding]:
    """libweft.so and weft._C."""
    try:
        import weft
    except ImportError as error:
        return [Finding("FAIL", str(error))]
    path = Path(weft.library_path())
    if not path.exists():
        return [Finding("FAIL", f"{path} is missing; build it with ./dev build")]
    return [Finding("ok", f"Weft {weft.__version__}, {path}")]


def registration() -> list[Finding]:
    """The backend, and the entry point that lets torch load Weft by itself."""
    import torch.distributed.rpc as rpc

    findings = []
    if "WEFT" in rpc.BackendType.__members__:
        findings.append(Finding("ok", "init_rpc knows BackendType.WEFT"))
    else:
        findings.append(Finding("FAIL", "init_rpc does not know BackendType.WEFT; import weft"))
    points = importlib.metadata.entry_points(group="torch.backends")
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        text = "TORCH_DEVICE_BACKEND_AUTOLOAD=0: programs must import weft themselves"
        findings.append(Finding("warn", text))
    elif any(point.name == "weft" for point in points):
        findings.append(Finding("ok", "torch loads Weft by itself (entry point torch.backends)"))
    else:
        findings.append(Finding("warn", "no entry point: programs must import weft themselves"))
    return findings


def network() -> list[Finding]:
    """Names and sockets."""
    findings = []
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
        if address.startswith("127."):
            text = f"this host's name, {name}, stands for {address}: other hosts cannot use it"
            findings.append(Finding("warn", text + "; Weft listens on a real interface instead"))
        else:
            findings.append(Finding("ok", f"this host's name, {name}, stands for {address}"))
    except OSError as error:
        findings.append(Finding("warn", f"this host's name, {name}, cannot be resolved ({error})"))
    findings += _master(os.environ.get("MASTER_ADDR", ""))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind("\0weft-doctor-" + os.urandom(8).hex())
            findings.append(Finding("ok", "Unix sockets work"))
        except OSError as error:
            text = f"no abstract Unix sockets ({error}); workers of one host use TCP"
            findings.append(Finding("warn", text))
    return findings


def _master(host: str) -> list[Finding]:
    if not host:
        return [Finding("ok", "MASTER_ADDR is not set (torchrun sets it)")]
    try:
        address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        return [Finding("FAIL", f"MASTER_ADDR {host} cannot be resolved ({error}); check it")]
    where = f"MASTER_ADDR {host} stands for {address[4][0]}"
    if wanted := os.environ.get("WEFT_SOCKET_IFNAME"):
        return [Finding("ok", f"{where}; WEFT_SOCKET_IFNAME={wanted} says where to listen")]
    with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: it asks the kernel for the route, as Weft does.
            probe.connect(address[4])
        except OSError as error:
            return [Finding("FAIL", f"{where}, and there is no way to it ({error})")]
        source = probe.getsockname()[0]
    if source.startswith("127.") and host not in ("localhost", address[4][0]):
        text = f"{where}: if other hosts take part, give an address that they can reach"
        return [Finding("warn", text)]
    return [Finding("ok", f"{where}; it is reached from {source}, where Weft listens")]


def key_file() -> list[Finding]:
    """The group's key."""
    path = os.environ.get("WEFT_AUTH_KEY_FILE", "")
    if not path:
        text = "no key file: the key goes through the Store (docs/guide/security.md)"
        return [Finding("ok", text)]
    make = "; make one with: (umask 077; openssl rand -hex 32 > FILE)"
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            return [Finding("FAIL", f"key file {path} is not a regular file{make}")]
        with open(path, "rb") as file:
            text = file.read(256).strip(b" \t\r\n")
    except OSError as error:
        return [Finding("FAIL", f"key file {path}: {error.strerror}{make}")]
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        return [Finding("FAIL", f"key file {path} is open to every user; run: chmod 600 {path}")]
    if not re.fullmatch(rb"[0-9a-fA-F]{64}", text) or not text.strip(b"0"):
        return [Finding("FAIL", f"key file {path} does not hold 64 hexadecimal digits{make}")]
    if mode & (stat.S_IRGRP | stat.S_IWGRP):
        return [
            Finding("warn", f"key file {path} is open to its group; if unwanted: chmod 600 {path}")
        ]
    return [Finding("ok", f"key file {path}")]


def limits() -> list[Finding]:
    """File descriptors and shared memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    level = "ok" if soft >= 1024 else "warn"
    more = "" if level == "ok" else "; more: ulimit -n 4096"
    findings = [Finding(level, f"{soft} file descriptors (each connected worker needs one){more}")]
    try:
        free = shutil.disk_usage("/dev/shm").free >> 20
        findings.append(Finding("ok", f"{free:,} MiB free in /dev/shm"))
    except OSError:
        findings.append(Finding("warn", "no /dev/shm"))
    return findings


def unknown_variables() -> list[Finding]:
    """Names that look like ours and are not."""
    from weft import env

    return [Finding("warn", f"{name} is no variable of Weft's") for name in env.unknown()]


def self_test() -> list[Finding]:
    """Two processes that call each other."""
    deadline = time.monotonic() + SELF_TEST_SECONDS
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "store")
        workers = [_start_worker(rank, meeting) for rank in range(2)]
        try:
            errors = [
                worker.communicate(timeout=max(0, deadline - time.monotonic()))[1]
                for worker in workers
            ]
        except subprocess.TimeoutExpired:
            return [Finding("FAIL", f"two workers did not finish within {SELF_TEST_SECONDS} s")]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    for worker, error in zip(workers, errors, strict=True):
        if worker.returncode != 0:
            return [Finding("FAIL", "two workers could not call each other:\n" + error)]
    return [Finding("ok", "two workers called each other")]


def _start_worker(rank: int, meeting: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SELF_TEST, str(rank), meeting],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def environment_lines() -> list[str]:
    """Every variable, with what holds now."""
    from weft import env

    return [
        f"{row.name}={row.value}"
        if row.value is not None
        else f"{row.name} (default {row.default!r})"
        for row in env.table()
    ]


ALL: tuple[Callable[[], list[Finding]], ...] = (
    versions,
    native_parts,
    registration,
    network,
    key_file,
    limits,
    unknown_variables,
    self_test,
)
