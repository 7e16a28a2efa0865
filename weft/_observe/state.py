"""What a process does now, as plain values, which any request policy lets through."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import threading
import traceback
from types import FrameType
from typing import Any

import torch.distributed as dist

from weft._observe.metrics import metrics
from weft._observe.waits import who_waits
from weft._torch import current
from weft.deadlines import deadline

State = dict[str, Any]


def own_state() -> State:
    """Who this process is, its figures, and what it waits for."""
    figures = dataclasses.asdict(metrics())
    if deadline() is not None:  # a call asks, which is not to be counted
        figures["counters"]["server_active_calls"] -= 1
    waits = [dataclasses.asdict(one) for one in who_waits()]
    return {**identity(), "waits": waits, "metrics": figures}


def own_stacks() -> State:
    """Who this process is, and where its threads are in Python; the main one first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda one: one[0] != main)
    own = threading.get_ident()  # answers this question
    found = [_stack(names.get(number), frame) for number, frame in frames if number != own]
    return {**identity(), "stacks": "\n".join(found)}


def _stack(thread: str | None, frame: FrameType) -> str:
    return f"{thread or 'a thread of C++'}:\n" + "".join(traceback.format_stack(frame))


def identity() -> State:
    """Who this process is; ``error`` is for those who ask."""
    agent = current.agent()
    own = agent.get_worker_info() if agent is not None else None
    rank = dist.get_rank() if dist.is_initialized() else 0
    return {
        "name": own.name if own is not None else f"rank {rank}",
        "rank": own.id if own is not None else rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "error": "",
    }
