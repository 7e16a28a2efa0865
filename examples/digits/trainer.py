"""A trainer: its own shard of the images, its own front end, the server's classifier.

Each trainer runs its own loop with its own distributed autograd context and its own
`DistributedOptimizer` over the server's parameters and its local ones. What keeps this honest:

- *The result is that of one process with a batch twice as large.* Each trainer's loss is the mean
  over its batch, divided by the number of trainers. The two optimizers apply their gradients of the
  shared classifier one after the other to the same parameters; SGD with momentum is linear in the
  gradient, so two of them, with a momentum buffer each, move the weights as one would that saw the
  sum (up to rounding). Weight decay or Adam would break this, and are not used.
- *The front ends stay the same, to the bit.* The trainers exchange their gradients on the server
  and both apply the sum. The evaluator checks after every epoch that they agree.
  With `--ddp` the front ends are under `DistributedDataParallel`, and a process group of the two
  trainers adds their gradients up during the backward pass: data parallelism and RPC in one program.
- *Nobody reads weights that are being written.* A step begins for all when the last one ended for
  all (`Rounds`); within it the optimizers take turns. Without this, autograd would rightly refuse:
  weights saved for one trainer's backward pass would have been changed by the other's step.
"""

from __future__ import annotations

import dataclasses
import itertools
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.distributed.optim import DistributedOptimizer
from torch.nn.parallel import DistributedDataParallel

from examples.digits import backend, data, gradients, published
from examples.digits.config import EVALUATOR, SERVER, TRAINERS, Config
from examples.digits.model import FrontEnd
from examples.digits.progress import Progress

#: The parts of a step that are timed.
PHASES = ("forward", "backward", "exchange", "optimizer", "leave")


@dataclasses.dataclass
class Report:
    """What a trainer tells about itself at the end."""

    images: int
    losses: list[float] = dataclasses.field(default_factory=list)
    #: Seconds of each phase, a row for each step.
    phases: list[list[float]] = dataclasses.field(default_factory=list)
    #: Bytes of tensors this trainer sent; it received as many (every tensor has its gradient).
    payload: int = 0
    traffic: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


class Trainer:
    """One of the trainers, with everything it needs for a step."""

    def __init__(self, config: Config, index: int, group: dist.ProcessGroup | None) -> None:
        digits = data.load()
        train, _ = data.split(digits.labels, config.seed)
        self.config = config
        self.index = index
        self.digits = digits.take(data.shard(train, index, len(TRAINERS)))
        self.front = FrontEnd(config.seed)
        self.model: nn.Module = self.front
        if group is not None:
            self.model = DistributedDataParallel(self.front, process_group=group)
            self.model.register_comm_hook(group, gradients.add_up)
        self.classifier, self.rounds = published.attach(SERVER)
        self.evaluator = published.attach(EVALUATOR)
        self.report = Report(images=len(self.digits))
        self.optimizer = self.new_optimizer(config.lr)

    def new_optimizer(self, lr: float) -> DistributedOptimizer:
        """An optimizer over the server's parameters and the local ones."""
        parameters = self.classifier.remote_parameters()
        parameters += [rpc.RRef(parameter) for parameter in self.front.parameters()]
        return DistributedOptimizer(
            torch.optim.SGD, parameters, lr=lr, momentum=self.config.momentum
        )

    def step(self, batch: data.Digits) -> float:
        """One training step on one batch; returns the batch's mean loss."""
        marks = [time.perf_counter()]
        with dist_autograd.context() as context:
            features = self.model(batch.images)
            scores = self.classifier.forward(features)
            loss = nn.functional.cross_entropy(scores, batch.labels)
            marks.append(time.perf_counter())
            dist_autograd.backward(context, [loss / len(TRAINERS)])
            marks.append(time.perf_counter())
            # These are the tensors the optimizer will find in the context: write the sum into them.
            # With DDP they are the sum already, and only the turn is waited for.
            found = {} if self.config.ddp else dist_autograd.get_gradients(context)
            own = [found[parameter] for parameter in self.front.parameters() if found]
            total = self.rounds.rpc_sync().enter(self.index, own)
            for mine, everyones in zip(own, total, strict=True):
                mine.copy_(everyones)
            marks.append(time.perf_counter())
            self.optimizer.step(context)
            marks.append(time.perf_counter())
        self.rounds.rpc_sync().leave(self.index)
        marks.append(time.perf_counter())
        self.report.phases.append([b - a for a, b in itertools.pairwise(marks)])
        self.report.payload += nbytes(features, scores, *own)
        return loss.item()

    def epoch(self, number: int) -> float:
        """One pass over the shard; returns the test accuracy after it."""
        if number == self.config.cooldown and number > 0:
            self.optimizer = self.new_optimizer(self.config.lr / 10)
        seed = self.config.seed * len(TRAINERS) + self.index
        for batch in data.batches(self.digits, self.config.batch, seed, number):
            self.report.losses.append(self.step(batch))
            self.progress.step(self.report.losses[-1])
        state = self.front.state_dict()
        return self.evaluator.rpc_sync().evaluate(number, self.index, state)


def nbytes(*tensors: Tensor) -> int:
    """The bytes of these tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def run(config: Config, index: int, group: dist.ProcessGroup | None = None) -> None:
    """Trains to the end and reports to the evaluator. The first trainer shows the progress.

    `group`: the trainers' process group, for `--ddp`.
    """
    trainer = Trainer(config, index, group)
    steps = -(-len(trainer.digits) // config.batch)
    with Progress(config.epochs, steps, shown=index == 0) as trainer.progress:
        for number in range(config.epochs):
            trainer.progress.epoch(number, trainer.epoch(number))
    trainer.report.traffic = backend.bytes_by_peer()
    trainer.evaluator.rpc_sync().finish(index, trainer.report)
