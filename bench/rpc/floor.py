"""What the machine itself allows: measured in the same run, so that ratios can be judged."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable

import torch

from bench.rpc import namespaces
from bench.rpc.metrics import Figures


def unix_socket_round_trip(count: int = 3000) -> Figures:
    """One byte there and back between two processes that block in recv."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    child = os.fork()
    if child == 0:
        ours.close()
        while theirs.recv(1):
            theirs.send(b"x")
        os._exit(0)
    theirs.close()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        ours.send(b"x")
        ours.recv(1)
        times.append(time.perf_counter() - start)
    ours.close()
    os.waitpid(child, 0)
    return {"raw Unix socket round trip us": sorted(times)[count // 2] * 1e6}


def _in_child(host: str | None, body: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            if host is not None:
                namespaces.enter(host)
            body()
        finally:
            os._exit(0)
    return child


def _send_all(address: tuple[str, int], size: int, rounds: int, result: int) -> None:
    data = memoryview(bytearray(b"x") * size)
    with socket.create_connection(address, timeout=30) as out:
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            out.sendall(data)
            out.recv(1)
            times.append(time.perf_counter() - start)
    os.write(result, struct.pack("d", size / sorted(times)[rounds // 2] / 1e9))


def _receive_all(listener: socket.socket, size: int, rounds: int) -> None:
    into = memoryview(bytearray(b"y") * size)  # pages that are there
    connection, _ = listener.accept()
    with connection:
        for _ in range(rounds):
            got = 0
            while got < size:
                count = connection.recv_into(into[got:])
                if count == 0:
                    return
                got += count
            connection.sendall(b"x")


def raw_tcp(hosts: namespaces.TwoHosts | None, size_mib: int, rounds: int = 7) -> Figures:
    """Bytes from one process to another over one TCP connection, answered by a byte: no messages, no
    tensors, and the receiver reads into memory that it has."""
    size = size_mib << 20
    reading, writing = os.pipe()
    meeting, told = socket.socketpair()
    meeting.settimeout(30)
    names = hosts.names if hosts is not None else (None, None)
    host = hosts.addresses[1] if hosts is not None else "127.0.0.1"

    def receive() -> None:
        with socket.create_server((host, 0)) as listener:
            listener.settimeout(30)
            told.send(struct.pack("i", listener.getsockname()[1]))
            _receive_all(listener, size, rounds)

    def send() -> None:
        (port,) = struct.unpack("i", meeting.recv(4))
        _send_all((host, port), size, rounds, writing)

    children = [_in_child(names[1], receive), _in_child(names[0], send)]
    os.close(writing)
    figure = os.read(reading, 8)
    for child in children:
        os.waitpid(child, 0)
    os.close(reading)
    meeting.close()
    told.close()
    if len(figure) < 8:
        return {}
    return {f"raw TCP {size_mib} MiB gb_s": struct.unpack("d", figure)[0]}


def memory_copy() -> Figures:
    """memcpy of 64 MiB into memory that is there already, and into fresh pages."""
    source = torch.ones(64 << 20, dtype=torch.uint8)
    target = torch.empty_like(source)
    target.copy_(source)

    def rate(copy) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            copy()
            times.append(time.perf_counter() - start)
        return source.numel() / sorted(times)[2] / 1e9

    return {
        "memcpy gb_s": rate(lambda: target.copy_(source)),
        "memcpy into fresh pages gb_s": rate(lambda: source.clone()),
    }


def all_floors(hosts: namespaces.TwoHosts | None = None) -> Figures:
    """Every floor, by name; TCP between ``hosts``, else over loopback."""
    return {
        **unix_socket_round_trip(),
        **raw_tcp(hosts, 16),
        **raw_tcp(hosts, 256),
        **memory_copy(),
    }
