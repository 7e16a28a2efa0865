"""Two hosts on one machine: two network namespaces with a cable (a veth pair) between them. Root only."""

from __future__ import annotations

import ctypes
import os
import subprocess
from types import TracebackType

_CLONE_NEWNET = 0x40000000
CABLE = "weft0"  # the interface's name at both ends


def enter(name: str) -> None:
    """Moves this thread, and those it will start, into the namespace called ``name``."""
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"entering network namespace {name}: {os.strerror(number)}")
    finally:
        os.close(handle)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()} (needs root)")


class TwoHosts:
    """Makes the namespaces ``names`` with ``addresses``; leaving takes them away again."""

    addresses = ("10.173.0.1", "10.173.0.2")

    def __init__(self) -> None:
        self.names = tuple(f"weft-bench-{os.getpid()}-{i}" for i in range(2))

    def __enter__(self) -> TwoHosts:
        try:
            for name in self.names:
                _ip("netns", "add", name)
            first, second = self.names
            _ip("-n", first, "link", "add", CABLE, "type", "veth", "peer", CABLE, "netns", second)
            for name, address in zip(self.names, self.addresses, strict=True):
                _ip("-n", name, "address", "add", f"{address}/24", "dev", CABLE)
                _ip("-n", name, "link", "set", CABLE, "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
