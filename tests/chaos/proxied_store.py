"""What puts the proxies between the workers: a Store that gives a proxy's address for a worker's.

Workers tell each other their addresses through the Store. This one passes everything on to a TCPStore,
and changes `tcp=HOST:PORT` in what it reads to the port of a proxy that leads there (proxy.py).
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

ADDRESS = re.compile(rb"(\btcp=)([0-9.]+):([0-9]+)")
PATIENCE = timedelta(seconds=30)


class ProxiedStore(dist.Store):
    """A client of the TCPStore at `port`; `network` is the Network's port, 0 for none."""

    def __init__(self, port: int, network: int) -> None:
        super().__init__()
        self.inner = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)
        self.set_timeout(PATIENCE)
        self.network = network

    def _through_proxy(self, found: re.Match[bytes]) -> bytes:
        with socket.create_connection(("127.0.0.1", self.network), timeout=10) as asking:
            asking.sendall(b"%b %b" % (found[2], found[3]))
            return b"%b127.0.0.1:%b" % (found[1], asking.recv(100))

    def get(self, key: str) -> bytes:
        value = bytes(self.inner.get(key))
        return ADDRESS.sub(self._through_proxy, value) if self.network else value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def set(self, key: str, value: Any) -> None:
        self.inner.set(key, value)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return bytes(self.inner.compare_set(key, expected, desired))

    def add(self, key: str, amount: int) -> int:
        return self.inner.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        return self.inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta = PATIENCE) -> None:
        self.inner.wait(keys, timeout)

    def delete_key(self, key: str) -> bool:
        return self.inner.delete_key(key)

    def num_keys(self) -> int:
        return self.inner.num_keys()


_stores: list[ProxiedStore] = []  # C++ holds the Store's C++ part only


def make_store(port: int, network: int) -> ProxiedStore:
    _stores.append(ProxiedStore(port, network))
    return _stores[-1]


def register() -> None:
    """Lets `init_method="chaos://KEEPER:PORT/?network=PORT"` mean such a Store."""

    def meet(
        url: str, rank: int = -1, world_size: int = -1, **more: Any
    ) -> Iterator[tuple[Any, int, int]]:
        port, network = re.fullmatch(r"chaos://[0-9.]+:(\d+)/\?network=(\d+).*", url).groups()
        yield make_store(int(port), int(network)), rank, world_size

    with contextlib.suppress(RuntimeError):  # it is registered already
        dist.register_rendezvous_handler("chaos", meet)
