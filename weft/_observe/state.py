"""What a process does now, as plain values: its own, and that of all workers of its RPC group."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.distributed.rpc as rpc

from weft._observe.metrics import metrics
from weft._observe.waits import who_waits
from weft._torch import current

State = dict[str, Any]

_PATIENCE = 1.0  # seconds for a worker to answer
_TIMED_OUT = "RPCErr:1:"  # how torch marks a call's timeout (torch/csrc/distributed/rpc/utils.h)
_KEPT = 1.0  # seconds for which an answer serves others who ask, too


def state() -> State:
    """Of this process: who it is, its figures, and what it waits for."""
    agent = current.agent()
    own = agent.get_worker_info() if agent is not None else None
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    return {
        "name": own.name if own is not None else f"rank {rank}",
        "rank": own.id if own is not None else rank,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "error": "",
        "waits": [dataclasses.asdict(one) for one in who_waits()],
        "metrics": dataclasses.asdict(metrics()),
    }


class GroupState:
    """The states of an RPC group's workers, asked of them over RPC. Any thread.

    Those who ask within a second share one answer, so a page that is asked often asks the workers
    seldom.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._states: list[State] = []
        self._asked = -_KEPT

    def get(self) -> list[State]:
        """By rank. Of a worker that does not answer in a second: its name, rank and an error."""
        with self._mutex:
            if time.monotonic() - self._asked >= _KEPT:
                self._states = _ask_all()
                self._asked = time.monotonic()
            return self._states


def _ask_all() -> list[State]:
    own = state()
    agent = current.agent()
    if agent is None:
        return [own]
    others = [info for info in agent.get_worker_infos() if info.id != own["rank"]]
    waits = [_ask(info) for info in others]
    return sorted([own, *(wait() for wait in waits)], key=lambda one: one["rank"])


def _ask(info: rpc.WorkerInfo) -> Callable[[], State]:
    """Asks a worker; what is returned waits for its answer."""

    def silent(error: Exception) -> State:
        text = str(error).partition("\n")[0]
        if text.startswith(_TIMED_OUT):
            text = f"does not answer within {_PATIENCE:g} s"
        return {"name": info.name, "rank": info.id, "error": text}

    def wait() -> State:
        try:
            answer = future.wait()
        except Exception as error:
            return silent(error)
        answer["metrics"]["counters"]["server_active_calls"] -= 1  # this very question
        return answer

    try:
        future = rpc.rpc_async(info.name, state, timeout=_PATIENCE)
    except RuntimeError as error:
        lost = silent(error)
        return lambda: lost
    return wait
