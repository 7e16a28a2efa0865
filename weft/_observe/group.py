"""What all workers of the RPC group say to a question, such as what they do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import torch.distributed.rpc as rpc

from weft._observe.state import State
from weft._torch import current

_PATIENCE = 1.0  # seconds for a worker to answer
_KEPT = 1.0  # seconds for which an answer serves others who ask, too
Answer = TypeVar("Answer")
_TIMED_OUT = "RPCErr:1:"  # how torch marks a call's timeout (torch/csrc/distributed/rpc/utils.h)


class GroupAnswers:
    """What each worker of the RPC group says to one question, asked over RPC. Any thread.

    Those who ask within a second share one answer, so a page that is asked often asks the workers
    seldom.
    """

    def __init__(self, question: Callable[[], State]) -> None:
        self._question = question
        self._mutex = threading.Lock()
        self._answers: list[State] = []
        self._asked = -_KEPT

    def get(self) -> list[State]:
        """By rank. Of a worker that does not answer in a second: its name, rank and an error."""
        with self._mutex:
            if time.monotonic() - self._asked >= _KEPT:
                self._answers = _ask_all(self._question)
                self._asked = time.monotonic()
            return self._answers


def _ask_all(question: Callable[[], State]) -> list[State]:
    own = question()
    agent = current.agent()
    if agent is None:
        return [own]
    others = [info for info in agent.get_worker_infos() if info.id != own["rank"]]
    waits = [ask(info, question) for info in others]
    return sorted([own, *(wait() for wait in waits)], key=lambda one: one["rank"])


def ask(info: rpc.WorkerInfo, question: Callable[[], Answer]) -> Callable[[], Answer | State]:
    """Asks a worker; what is returned waits for its answer, or tells of its error as a state."""

    def silent(error: Exception) -> State:
        text = str(error).partition("\n")[0]
        if text.startswith(_TIMED_OUT):
            text = f"does not answer within {_PATIENCE:g} s"
        return {"name": info.name, "rank": info.id, "error": text}

    def wait() -> Answer | State:
        try:
            return future.wait()
        except Exception as error:
            return silent(error)

    try:
        future = rpc.rpc_async(info.name, question, timeout=_PATIENCE)
    except RuntimeError as error:
        lost = silent(error)
        return lambda: lost
    return wait
