"""What a run came to."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from torch import Tensor

from examples.digits.config import EVALUATOR, SERVER, TRAINERS, WORKERS, Config
from examples.digits.data import Digits
from examples.digits.trainer import Report

Traffic = dict[str, dict[str, tuple[int, int]]]


@dataclasses.dataclass
class Mistake:
    """A test image that the model takes for another digit."""

    image: Tensor
    label: int
    predicted: int


def mistakes(test: Digits, predicted: Tensor) -> list[Mistake]:
    """The test images whose prediction is wrong."""
    wrong = (predicted != test.labels).nonzero().flatten().tolist()
    return [Mistake(test.images[i, 0], int(test.labels[i]), int(predicted[i])) for i in wrong]


@dataclasses.dataclass
class Results:
    """Everything the report is made from."""

    config: Config
    seconds: float
    accuracies: list[float]
    mistakes: list[Mistake]
    trainers: list[Report]
    tested: int
    evaluator_payload: tuple[int, int]  # features sent, scores received
    parameters: tuple[int, int]  # of the front end, of the classifier
    rounds: int
    #: For each worker, bytes sent to and received from each peer; empty if the agent counts none.
    traffic: Traffic

    @property
    def accuracy(self) -> float:
        """Test accuracy of the final weights (not of the best epoch)."""
        return self.accuracies[-1]

    @property
    def passed(self) -> bool:
        """Whether the accuracy is what the run was asked for."""
        return self.accuracy >= self.config.threshold

    @property
    def measured(self) -> bool:
        """Whether the agents counted the bytes; otherwise they are an estimate."""
        return all(self.traffic.get(name) for name in WORKERS)

    @property
    def steps(self) -> list[float]:
        """Seconds of every step of every trainer."""
        return [sum(row) for told in self.trainers for row in told.phases]

    @property
    def losses(self) -> list[float]:
        """The mean over the trainers of each step's loss."""
        rows = zip(*(told.losses for told in self.trainers), strict=True)
        return [statistics.fmean(row) for row in rows]

    def moved(self) -> dict[str, tuple[int, int]]:
        """Bytes sent and received by each worker."""
        if self.measured:
            return {name: total(self.traffic[name]) for name in WORKERS}
        return self.estimate()

    def estimate(self) -> dict[str, tuple[int, int]]:
        """Bytes of tensors only, computed from their sizes: no headers, no control messages.

        A trainer receives as much as it sends, since every tensor of a step has its counterpart.
        """
        sent = {name: told.payload for name, told in zip(TRAINERS, self.trainers, strict=True)}
        states = 4 * self.parameters[0] * len(self.accuracies)
        result = {name: (amount + states, amount) for name, amount in sent.items()}
        features, scores = self.evaluator_payload
        result[EVALUATOR] = (features, scores + states * len(TRAINERS))
        served = sum(sent.values())
        result[SERVER] = (served + scores, served + features)
        return {name: result[name] for name in WORKERS}


def total(by_peer: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """Adds up what went to and came from all peers."""
    sent = sum(pair[0] for pair in by_peer.values())
    return sent, sum(pair[1] for pair in by_peer.values())


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
