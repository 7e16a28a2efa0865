"""Checks of the machine: names and sockets, the key file, limits."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import stat
from collections.abc import Iterator

from weft.doctor.finding import Finding, fail, ok, warn


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
            return fail(f"{where}, and there is no way to it ({error})")
        source = probe.getsockname()[0]
    if source.startswith("127.") and host not in ("localhost", address[4][0]):
        return warn(f"{where}: if other hosts take part, give an address that they can reach")
    return ok(f"{where}; it is reached from {source}, where Weft listens")


def key_file() -> Iterator[Finding]:
    """The group's key."""
    path = os.environ.get("WEFT_AUTH_KEY_FILE", "")
    yield (
        _key_file(path)
        if path
        else ok("no key file: the key goes through the Store (docs/guide/security.md)")
    )


def _key_file(path: str) -> Finding:
    make = "; make one with: (umask 077; openssl rand -hex 32 > FILE)"
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            return fail(f"key file {path} is not a regular file{make}")
        with open(path, "rb") as file:
            text = file.read(256).strip(b" \t\r\n")
    except OSError as error:
        return fail(f"key file {path}: {error.strerror}{make}")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        return fail(f"key file {path} is open to every user; run: chmod 600 {path}")
    if not re.fullmatch(rb"[0-9a-fA-F]{64}", text) or not text.strip(b"0"):
        return fail(f"key file {path} does not hold 64 hexadecimal digits{make}")
    if mode & (stat.S_IRGRP | stat.S_IWGRP):
        return warn(f"key file {path} is open to its group; if unwanted: chmod 600 {path}")
    return ok(f"key file {path}")


def limits() -> Iterator[Finding]:
    """File descriptors and shared memory."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} file descriptors (each connected worker needs one)"
    yield ok(text) if soft >= 1024 else warn(f"{text}; more: ulimit -n 4096")
    try:
        yield ok(f"{shutil.disk_usage('/dev/shm').free >> 20:,} MiB free in /dev/shm")
    except OSError:
        yield warn("no /dev/shm")
