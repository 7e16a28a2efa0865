"""One worker: trains with whoever is there. After a death the others go on in a smaller group; a worker
that is started again gets the weights at the next epoch."""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import weft  # noqa: F401  registers the backend
from examples.digits import data
from examples.elastic import roll_call

STEPS = 100  # of an epoch
BATCH = 128  # images of a step, divided among the ranks that there are
TIMEOUT = timedelta(seconds=5)


class Training:
    """The model, and how many steps it has made: all that a newcomer must be told."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.digits = data.load()
        self.train, self.test = data.split(self.digits.labels, seed=0)
        self.step = 0

    def agree(self) -> None:
        """Gives everybody the weights of the rank that has made most steps.

        After a death some may have made a step that others have not; a newcomer has made none.
        """
        steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([self.step]))
        source = max(range(len(steps)), key=lambda rank: int(steps[rank]))
        weights = [parameter.detach().clone() for parameter in self.model.parameters()]
        for weight in weights:
            dist.broadcast(weight, source)
        self.step = int(steps[source])
        with torch.no_grad():  # only now: what failed half-way has changed nothing
            for parameter, weight in zip(self.model.parameters(), weights, strict=True):
                parameter.copy_(weight)

    def make_step(self) -> None:
        """One step of all ranks: each takes its share of the same random batch."""
        generator = torch.Generator().manual_seed(self.step)
        chosen = torch.randint(len(self.train), (BATCH,), generator=generator)
        mine = self.digits.take(self.train[chosen[dist.get_rank() :: dist.get_world_size()]])
        outputs = self.model(mine.images)
        loss = functional.cross_entropy(outputs, mine.labels, reduction="sum") / BATCH
        self.optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in self.model.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, sum_ in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(sum_.view_as(gradient))
        self.optimizer.step()
        self.step += 1

    def accuracy(self) -> float:
        held_out = self.digits.take(self.test)
        right = self.model(held_out.images).argmax(1) == held_out.labels
        return right.float().mean().item()


def go_on_without_the_dead(
    store: dist.Store, generation: int, deaths: int, left: list[int]
) -> float:
    """The default group becomes that of the survivors; how many milliseconds that took.

    `left`, the workers of the group by rank, loses the dead one: ranks count anew.
    """
    dead = left.index(roll_call.next_death(store, generation, deaths))
    began = time.monotonic()
    dist.shrink_group([dead])
    del left[dead]
    return (time.monotonic() - began) * 1000


def run_generation(
    training: Training, store: dist.Store, generation: int, members: list[int]
) -> None:
    """The steps up to the end of an epoch, with as many ranks as live."""
    deaths, end, left = 0, 0, list(members)
    while True:
        try:
            training.agree()
            end = end or (training.step // STEPS + 1) * STEPS
            while training.step < end:
                training.make_step()
            return
        except dist.DistBackendError as error:
            took = go_on_without_the_dead(store, generation, deaths, left)
            deaths += 1
            if dist.get_rank() == 0:
                size, why = dist.get_world_size(), str(error).splitlines()[0]
                print(f"step {training.step}: {size} go on after {took:.0f} ms: {why}", flush=True)


def run(me: int, port: int) -> None:
    """The life of worker `me`; `port` is that of the launcher's Store."""
    torch.set_num_threads(1)
    store = roll_call.connect(port)
    training = Training()
    while True:
        generation, members = roll_call.answer(store, me)
        if not members:
            break
        meeting = dist.PrefixStore(f"group{generation}/", store)
        rank, size = members.index(me), len(members)
        with contextlib.suppress(
            dist.DistError
        ):  # more is wrong than one death: the next roll call
            dist.init_process_group(
                "weft", store=meeting, rank=rank, world_size=size, timeout=TIMEOUT
            )
            run_generation(training, store, generation, members)
        if dist.is_initialized():
            dist.destroy_process_group()
    store.set(f"accuracy/{me}", str(training.accuracy()))
