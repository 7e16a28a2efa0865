"""The server: it holds the classifier, and it is where the trainers meet once per step.

The classifier is a `RemoteModule`, made once and handed to every worker that asks. Forward calls,
gradients and optimizer steps arrive as RPCs, so the main thread has nothing to do.
"""

from __future__ import annotations

import threading

import torch.distributed.rpc as rpc
from torch import Tensor
from torch.distributed.nn import RemoteModule
from torch.futures import Future

from examples.digits import published
from examples.digits.config import SERVER, TRAINERS, Config
from examples.digits.model import Classifier


class Rounds:
    """Keeps the trainers in step. One round of each is `enter`, then `leave`.

    `enter` brings a trainer's gradients of the front end and answers with the sum over all
    trainers. It answers the first trainer when all are there, and each further one when the one
    before it has left: in between, a trainer has the shared parameters for itself. `leave` answers
    when all have left. Nobody blocks a thread here: who has to wait gets its future set later.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._rounds = 0
        self._lock = threading.Lock()
        self._gradients: dict[int, list[Tensor]] = {}
        self._total: list[Tensor] = []
        self._entering: dict[int, Future[list[Tensor]]] = {}
        self._leaving: list[Future[None]] = []

    @rpc.functions.async_execution
    def enter(self, index: int, gradients: list[Tensor]) -> Future[list[Tensor]]:
        """Trainer `index` has finished its backward pass."""
        answer: Future[list[Tensor]] = Future()
        with self._lock:
            self._gradients[index] = gradients
            self._entering[index] = answer
            complete = len(self._gradients) == self.count
            if complete:
                # In the order of the trainers, not of arrival: every run adds up to the same bits.
                in_order = [self._gradients[i] for i in range(self.count)]
                self._total = [sum(parts[1:], parts[0]) for parts in zip(*in_order, strict=True)]
                self._gradients.clear()
                first = self._entering.pop(0)
        if complete:
            first.set_result(self._total)
        return answer

    @rpc.functions.async_execution
    def leave(self, index: int) -> Future[None]:
        """Trainer `index` has taken its optimizer step."""
        answer: Future[None] = Future()
        with self._lock:
            self._leaving.append(answer)
            following = self._entering.pop(index + 1, None)
            done = []
            if len(self._leaving) == self.count:
                done, self._leaving = self._leaving, []
                self._rounds += 1
        if following is not None:
            following.set_result(self._total)
        for waiting in done:
            waiting.set_result(None)
        return answer

    def count_rounds(self) -> int:
        """How many rounds have been completed."""
        with self._lock:
            return self._rounds


def run(config: Config) -> None:
    """Publishes the classifier and the meeting point. The RPC threads do the rest."""
    classifier = RemoteModule(f"{SERVER}/cpu", Classifier, args=(config.seed + 1,))
    published.publish((classifier, rpc.RRef(Rounds(len(TRAINERS)))))
