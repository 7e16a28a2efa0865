"""``python -m weft.doctor``: tells whether Weft can work here, and what to do where it can't.

One line per check. Exits with 1 when a check failed. ``--no-self-test`` leaves out the two processes that
call each other at the end. Where Weft cannot be loaded at all, it says why, and what to do.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

import weft
from weft import _C
from weft._observe import exporter, flight, hangs
from weft._torch import patches as torch_patches

SELF_TEST_SECONDS = 100  # on a busy machine, importing torch takes long
SELF_TEST_PROGRAM = """
import sys, torch, torch.distributed.rpc as rpc, weft
rank, path = int(sys.argv[1]), sys.argv[2]
rpc.init_rpc(f"doctor{rank}", backend=rpc.BackendType.WEFT, rank=rank, world_size=2,
             rpc_backend_options=weft.RpcBackendOptions(init_method="file://" + path, rpc_timeout=30))
if rank == 0:
    assert rpc.rpc_sync("doctor1", torch.add, args=(torch.ones(1), 1)).item() == 2
rpc.shutdown()
"""


class Finding(NamedTuple):
    """One line: ``ok``, ``warn`` or ``FAIL``, and a sentence."""

    level: str
    text: str


ok = functools.partial(Finding, "ok")  # nothing to do
warn = functools.partial(Finding, "warn")  # Weft works, with less than it could have
fail = functools.partial(Finding, "FAIL")  # Weft does not work before this is changed


def versions() -> Iterator[Finding]:
    """Python, torch and Weft, which have loaded, and what they run on."""
    here = f"Python {platform.python_version()}, torch {torch.__version__}"
    yield ok(f"{here}; Weft {weft.__version__}")
    yield ok(weft.library_path())
    cores = len(os.sched_getaffinity(0))
    yield ok(f"{cores} cores; CUDA devices: {torch.cuda.device_count()}")


def entry_point() -> Iterator[Finding]:
    """What lets torch load Weft by itself."""
    points = importlib.metadata.entry_points(group="torch.backends")
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        yield warn("TORCH_DEVICE_BACKEND_AUTOLOAD=0: programs must import weft themselves")
    elif any(point.name == "weft" for point in points):
        yield ok("torch loads Weft by itself (entry point torch.backends)")
    else:
        yield warn("no entry point: programs must import weft themselves")


def patches() -> Iterator[Finding]:
    """Whether torch's functions that Weft replaces are those that it knows."""
    differences = [(patch, text) for patch in torch_patches.ALL if (text := patch.mismatch())]
    for patch, text in differences:
        yield warn(f"{text}. {patch.without}")
    if not differences:
        yield ok(f"torch has the {len(torch_patches.ALL)} functions that Weft replaces as expected")


def settings() -> Iterator[Finding]:
    """Variables with a value that a worker refuses when it joins."""
    reads: tuple[Callable[[], object], ...] = (
        weft.RpcBackendOptions,
        hangs.limit,
        exporter.wanted_address,
        flight.size,
        _C._check_interface,
        _check_master_port,
    )
    for read in reads:
        try:
            read()
        except (ValueError, OSError) as error:
            yield fail(str(error))


def _check_master_port() -> None:
    port = os.environ.get("MASTER_PORT") or "0"
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"MASTER_PORT must be a port, from 0 to 65535, got {port!r}")


def unknown_variables() -> Iterator[Finding]:
    """Environment variables that begin with ``WEFT_`` and that Weft does not know."""
    for name in _C.unknown_environment():
        yield warn(f"the environment variable {name} is not one that Weft knows")


def network() -> Iterator[Finding]:
    """The host's name, the way to MASTER_ADDR, Unix sockets."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
        text = f"this host's name, {name}, stands for {address}"
        if address.startswith("127."):
            instead = "Weft listens on a real interface instead"
            yield warn(f"{text}: other hosts cannot use it; {instead}")
        else:
            yield ok(text)
    except OSError as error:
        yield warn(f"this host's name, {name}, cannot be resolved ({error})")
    yield _master(os.environ.get("MASTER_ADDR", ""))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.bind("\0weft-doctor-" + os.urandom(8).hex())
            yield ok("Unix sockets work")
        except OSError as error:
            yield warn(f"no abstract Unix sockets ({error}); workers of one host use TCP")


def _master(host: str) -> Finding:
    if not host:
        return ok("MASTER_ADDR is not set (torchrun sets it)")
    try:
        address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        return fail(f"MASTER_ADDR {host} cannot be resolved ({error}); check it")
    where = f"MASTER_ADDR {host} stands for {address[4][0]}"
    if wanted := os.environ.get("WEFT_SOCKET_IFNAME"):
        return ok(f"{where}; WEFT_SOCKET_IFNAME={wanted} says where to listen")
    with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: it asks the kernel for the route, as Weft does.
            probe.connect(address[4])
        except OSError as error:
            return fail(f"{where}, and there is no route to it ({error})")
        source = probe.getsockname()[0]
    if source.startswith("127.") and host not in ("localhost", address[4][0]):
        return warn(f"{where}: if other hosts take part, give an address that they can reach")
    return ok(f"{where}; it is reached from {source}, where Weft listens")


def key_file() -> Iterator[Finding]:
    """The group's key."""
    path = os.environ.get("WEFT_AUTH_KEY_FILE", "")
    if not path:
        yield ok("no key file: the key goes through the Store (docs/guide/security.md)")
        return
    try:
        _C._check_key_file()
        yield ok(f"key file {path}")
    except ValueError as error:
        yield fail(str(error))


def limits() -> Iterator[Finding]:
    """File descriptors and shared memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} file descriptors (each connected worker needs one)"
    yield ok(text) if soft >= 1024 else warn(f"{text}; more: ulimit -n 4096")
    try:
        yield ok(f"{shutil.disk_usage('/dev/shm').free >> 20:,} MiB free in /dev/shm")
    except OSError:
        yield warn("no /dev/shm")


def self_test() -> Iterator[Finding]:
    """Two processes that call each other."""
    deadline = time.monotonic() + SELF_TEST_SECONDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workers = [_start_worker(rank, folder) for rank in range(2)]
        try:
            for worker in workers:
                worker.wait(timeout=max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            yield fail(f"two workers did not finish within {SELF_TEST_SECONDS} s")
            return
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        failed = [rank for rank, worker in enumerate(workers) if worker.returncode]
        if failed:
            error = (folder / f"stderr{failed[0]}").read_text(errors="replace")
            yield fail(f"two workers could not call each other:\n{error}")
        else:
            yield ok("two workers called each other")


def _start_worker(rank: int, folder: Path) -> subprocess.Popen[bytes]:
    # A file takes all that a worker writes; a pipe would stop it until somebody reads.
    with open(folder / f"stderr{rank}", "wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-c", SELF_TEST_PROGRAM, str(rank), str(folder / "store")],
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )


CHECKS = (
    versions,
    entry_point,
    patches,
    network,
    key_file,
    limits,
    settings,
    unknown_variables,
)


def main(arguments: list[str] | None = None) -> int:
    """Runs all checks, prints what they find, and returns the exit status.

    Args:
        arguments: of the command line; by default those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m weft.doctor", description=__doc__)
    parser.add_argument("--no-self-test", action="store_true", help="start no processes")
    chosen = parser.parse_args(arguments)
    failed = False
    for check in CHECKS if chosen.no_self_test else (*CHECKS, self_test):
        for finding in check():
            failed = failed or finding.level == "FAIL"
            print(f"{finding.level:4}  {finding.text}")
    print("\nEnvironment variables (docs/reference/environment.md):")
    for name, default, _ in _C.environment():
        value = os.environ.get(name)
        print(f"  {name}" + (f" (default {default!r})" if value is None else f"={value}"))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # `doctor | head` has read enough; Python would complain again when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)
