"""What the machine itself allows: raw sockets and memcpy, measured beside each round so that figures can
be judged as multiples of them. Runs in processes of its own, which import no torch:
``python -m bench.limits [--cores A B]`` prints the figures as JSON.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable

from bench.report import Figures
from bench.rpc import namespaces

ROUND_TRIP = "raw Unix socket round trip us"
IN_FLIGHT = "raw Unix socket, 1000 in flight per_s"
STATE = 46_800_000  # bytes of a ResNet-18's state
MANY = 200 * 4096
SIZES = {
    "64 KiB": 64 << 10,
    "200 x 4 KiB": MANY,
    "1 MiB": 1 << 20,
    "16 MiB": 16 << 20,
    "state": STATE,
    "256 MiB": 256 << 20,
}
TCP_SIZES = ("64 KiB", "200 x 4 KiB", "1 MiB", "16 MiB", "state", "256 MiB")
CONNECTIONS = 2  # what Weft has between two workers (the second one from 1 MiB on)


def memcpy(label: str) -> str:
    """The name of the figure of copying so much into warm pages."""
    return f"memcpy {label} us"


def tcp(label: str) -> str:
    """The name of the figure of sending so much over the connections that Weft has."""
    return f"raw TCP {label} us"


def pin(core: int | None) -> None:
    """Keeps this process, and the threads it will start, on one core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def _in_child(body: Callable[[], None], core: int | None = None, host: str | None = None) -> int:
    child = os.fork()
    if child == 0:
        try:
            pin(core)
            if host is not None:
                namespaces.enter(host)
            body()
        finally:
            os._exit(0)
    return child


def unix_socket(cores: tuple[int, int] | None, count: int = 1500) -> Figures:
    """One byte there and back between two processes that block in recv; and many bytes at once."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def echo() -> None:
        ours.close()
        while byte := theirs.recv(1):
            theirs.send(byte)

    child = _in_child(echo, cores and cores[1])
    theirs.close()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        ours.send(b"x")
        ours.recv(1)
        times.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(10):
        # No more than the socket's buffers take, lest both wait for each other.
        for _ in range(100):
            ours.send(b"x")
        for _ in range(100):
            ours.recv(1)
    in_flight = 1000 / (time.perf_counter() - start)
    ours.close()
    os.waitpid(child, 0)
    return {ROUND_TRIP: statistics.median(times) * 1e6, IN_FLIGHT: in_flight}


def memory_copy() -> Figures:
    """memcpy of each size into pages that are there already."""
    largest = max(SIZES.values())
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    areas = [mmap.mmap(-1, largest, flags=private) for _ in range(2)]
    source, target = (ctypes.addressof(ctypes.c_char.from_buffer(area)) for area in areas)
    ctypes.memset(source, 1, largest)
    ctypes.memmove(target, source, largest)
    figures: Figures = {}
    for label, size in SIZES.items():
        times = []
        for _ in range(max(3, min(50, (64 << 20) // size))):
            start = time.perf_counter()
            ctypes.memmove(target, source, size)
            times.append(time.perf_counter() - start)
        figures[memcpy(label)] = statistics.median(times) * 1e6
    return figures


def _connect(address: tuple[str, int]) -> socket.socket:
    made = socket.create_connection(address, timeout=30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _send_all(address: tuple[str, int], result: int) -> None:
    """Each of the connections sends its part from a thread's worth of process, then waits for a byte."""
    links = [_connect(address) for _ in range(CONNECTIONS)]
    data = memoryview(bytearray(b"x") * max(SIZES.values()))
    helper, told = socket.socketpair()

    def help_send() -> None:
        while order := told.recv(8):
            links[1].sendall(data[: struct.unpack("q", order)[0]])

    child = _in_child(help_send)
    for label in TCP_SIZES:
        size = SIZES[label]
        # Weft sends half of it over the second connection, from 1 MiB on.
        part = size // 2 if size >= 1 << 20 else 0
        times = []
        for _ in range(max(5, min(50, (32 << 20) // size))):
            start = time.perf_counter()
            if part:
                helper.send(struct.pack("q", part))
            links[0].sendall(data[: size - part])
            for link in links if part else links[:1]:
                link.recv(1)
            times.append(time.perf_counter() - start)
        os.write(result, struct.pack("d", statistics.median(times) * 1e6))
    helper.close()
    told.close()
    os.kill(child, 9)
    os.waitpid(child, 0)


def _receive_part(link: socket.socket, whole: bool) -> None:
    """Reads what one connection brings; ``whole``: also what is too small to be shared out."""
    into = memoryview(bytearray(b"y") * max(SIZES.values()))  # pages that are there
    for label in TCP_SIZES:
        size = SIZES[label]
        part = size // 2 if size >= 1 << 20 else 0
        mine = size - part if whole else part
        if not mine:
            continue
        for _ in range(max(5, min(50, (32 << 20) // size))):
            got = 0
            while got < mine:
                count = link.recv_into(into[got:mine])
                if count == 0:
                    return
                got += count
            link.sendall(b"x")


def raw_tcp(hosts: tuple[str, str, str] | None, cores: tuple[int, int] | None) -> Figures:
    """Bytes from one process to another over as many TCP connections as Weft has, each answered by a
    byte: no messages, no tensors, and the receiver reads into memory that it has. ``hosts``: two network
    namespaces and the second one's address, else loopback."""
    reading, writing = os.pipe()
    meeting, told = socket.socketpair()
    meeting.settimeout(30)
    sender, receiver, host = hosts or (None, None, "127.0.0.1")

    def receive() -> None:
        with socket.create_server((host, 0)) as listener:
            listener.settimeout(30)
            told.send(struct.pack("i", listener.getsockname()[1]))
            links = [listener.accept()[0] for _ in range(CONNECTIONS)]
            child = _in_child(lambda: _receive_part(links[1], whole=False))
            _receive_part(links[0], whole=True)
            os.waitpid(child, 0)

    def send() -> None:
        (port,) = struct.unpack("i", meeting.recv(4))
        _send_all((host, port), writing)

    children = [
        _in_child(receive, cores and cores[1], receiver),
        _in_child(send, cores and cores[0], sender),
    ]
    os.close(writing)
    figures: Figures = {}
    for label in TCP_SIZES:
        if len(text := os.read(reading, 8)) == 8:
            figures[tcp(label)] = struct.unpack("d", text)[0]
    for child in children:
        os.waitpid(child, 0)
    return figures


def measure(
    cores: tuple[int, int] | None = None, hosts: namespaces.TwoHosts | None = None
) -> Figures:
    """Every limit, by name, in processes of their own; TCP between ``hosts``, else over loopback."""
    command = [sys.executable, "-m", "bench.limits"]
    if cores:
        command += ["--cores", *map(str, cores)]
    if hosts:
        command += ["--hosts", *hosts.names, hosts.addresses[1]]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return json.loads(done.stdout)


def main() -> None:
    """Prints them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, nargs=2)
    parser.add_argument("--hosts", nargs=3)
    arguments = parser.parse_args()
    cores = arguments.cores and tuple(arguments.cores)
    # Forks first: the sockets' processes need none of the memory.
    figures = {**raw_tcp(arguments.hosts and tuple(arguments.hosts), cores)}
    pin(cores and cores[0])
    print(json.dumps({**unix_socket(cores), **figures, **memory_copy()}))


if __name__ == "__main__":
    main()
