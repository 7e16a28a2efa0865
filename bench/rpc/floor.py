"""What the machine itself allows: measured in the same run, so that ratios can be judged."""

from __future__ import annotations

import os
import socket
import time

import torch

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


def all_floors() -> Figures:
    """Every floor, by name."""
    return {**unix_socket_round_trip(), **memory_copy()}
