"""The evaluator: measures the current weights on the held-out fifth, and reports at the end.

After an epoch both trainers send it their front end's weights and wait. When it has both, it checks
that they are equal, sends the test images' features through the server's classifier, and answers
both trainers: so what it measures is one state of the weights, not a moving one.
"""

from __future__ import annotations

import threading
import time

import torch
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.futures import Future

from examples.digits import backend, data, published, report, trainer
from examples.digits.config import EVALUATOR, SERVER, TRAINERS, Config
from examples.digits.model import FrontEnd, parameter_count
from examples.digits.results import Results, mistakes


class Evaluator:
    """Holds the test images, and what the trainers have told."""

    def __init__(self, config: Config) -> None:
        digits = data.load()
        _, test = data.split(digits.labels, config.seed)
        self.test = digits.take(test)
        self.front = FrontEnd(config.seed)
        self.classifier, self.rounds = published.attach(SERVER)
        self.accuracies: list[float] = []
        self.predicted = torch.empty(0)
        self.payload = (0, 0)  # bytes of features sent, of scores received
        self.reports: dict[int, trainer.Report] = {}
        self.finished = threading.Event()
        self._lock = threading.Lock()
        self._states: dict[int, dict[str, Tensor]] = {}
        self._answers: list[Future[float]] = []

    @rpc.functions.async_execution
    def evaluate(self, epoch: int, index: int, state: dict[str, Tensor]) -> Future[float]:
        """Trainer `index` has ended this epoch with this front end; the answer is the accuracy."""
        answer: Future[float] = Future()
        with self._lock:
            self._states[index] = state
            self._answers.append(answer)
            if len(self._states) < len(TRAINERS):
                return answer
            states, self._states = self._states, {}
            answers, self._answers = self._answers, []
        try:
            accuracy = self._measure(epoch, states)
        except Exception as error:
            for waiting in answers:
                waiting.set_exception(error)
        else:
            for waiting in answers:
                waiting.set_result(accuracy)
        return answer

    def _measure(self, epoch: int, states: dict[int, dict[str, Tensor]]) -> float:
        for name, value in states[0].items():
            for other in states.values():
                if not torch.equal(value, other[name]):
                    raise RuntimeError(f"after epoch {epoch + 1} the front ends differ in {name}")
        self.front.load_state_dict(states[0])
        with torch.no_grad():
            features = self.front(self.test.images)
            scores = self.classifier.forward(features)
        self.predicted = scores.argmax(dim=1)
        self.accuracies.append((self.predicted == self.test.labels).double().mean().item())
        sent, received = self.payload
        self.payload = (sent + trainer.nbytes(features), received + trainer.nbytes(scores))
        return self.accuracies[-1]

    def classifier_size(self) -> int:
        """How many numbers the server's classifier learns."""
        parameters = self.classifier.remote_parameters()
        return sum(parameter.to_here().numel() for parameter in parameters)

    def finish(self, index: int, told: trainer.Report) -> None:
        """Trainer `index` is done."""
        with self._lock:
            self.reports[index] = told
            if len(self.reports) == len(TRAINERS):
                self.finished.set()


def run(config: Config) -> None:
    """Serves the trainers until they are done, then prints and writes the results."""
    began = time.monotonic()
    evaluator = Evaluator(config)
    published.publish(rpc.RRef(evaluator))
    if not evaluator.finished.wait(config.deadline):
        raise TimeoutError(f"the trainers were not done after {config.deadline:.0f} s")
    traffic = {EVALUATOR: backend.bytes_by_peer()}
    traffic[SERVER] = rpc.rpc_sync(SERVER, backend.bytes_by_peer)
    for index, name in enumerate(TRAINERS):
        traffic[name] = evaluator.reports[index].traffic
    outcome = Results(
        config=config,
        seconds=time.monotonic() - began,
        accuracies=evaluator.accuracies,
        mistakes=mistakes(evaluator.test, evaluator.predicted),
        trainers=[evaluator.reports[index] for index in range(len(TRAINERS))],
        tested=len(evaluator.test),
        evaluator_payload=evaluator.payload,
        parameters=(parameter_count(evaluator.front), evaluator.classifier_size()),
        rounds=evaluator.rounds.rpc_sync().count_rounds(),
        traffic=traffic,
    )
    report.write(outcome)
