"""What workers do while something goes wrong: operations, each with its outcome, recorded once.

Each workload is a function `operation(run, number)` that does one operation and returns what is wrong
with its result, or None. `Run` calls it from several threads until it is told to stop. A callee counts
what it executes (ledger.py), so that the two sides can be compared.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ledger import SLOTS, Ledger, executed, forget

TIMEOUT = 30.0  # seconds of a call: longer than any fault, so that no call ends by it
SIZES = (1, 1, 1, 100, 20_000, 400_000)  # numbers of elements: inline, shared memory, bulk


@dataclass(frozen=True)
class Outcome:
    """One operation that did not end rightly, or not at all."""

    number: int
    status: str  # "error", "wrong", "unended"
    text: str
    started: float
    ended: float


@dataclass
class Report:
    """What became of all operations of a run."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    outcomes: list[Outcome] = field(default_factory=list)
    stacks: str = ""


class Run:
    """Operations of one kind, several at a time, in threads of this worker."""

    def __init__(self, kind: str, peers: list[str], ledger: str, threads: int, first: int) -> None:
        self.kind, self.peers, self.ledger = kind, peers, ledger
        self.operation = OPERATIONS[kind]
        self.numbers = itertools.count(first)
        self.last = first + SLOTS // 2 - 1
        self.report = Report(kind)
        self.right: list[int] = []
        self.open: dict[int, float] = {}
        self.stopping = threading.Event()
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self._lane, daemon=True) for _ in range(threads)]
        for thread in self.threads:
            thread.start()

    def _lane(self) -> None:
        while not self.stopping.is_set() and (number := next(self.numbers)) < self.last:
            started = time.monotonic()
            self.open[number] = started
            try:
                why = self.operation(self, number)
                status, text = ("wrong", why) if why else ("right", "")
            except Exception as error:
                status, text = "error", f"{type(error).__name__}: {error}"
            with self.changed:
                del self.open[number]
                self.report.counts[status] += 1
                if status == "right":
                    self.right.append(number)
                else:
                    outcome = Outcome(number, status, text, started, time.monotonic())
                    self.report.outcomes.append(outcome)
                self.changed.notify_all()
            if status == "error":
                self.stopping.wait(0.01)  # a dead peer gives thousands of them a second

    def progress(self, more: int, bound: float) -> bool:
        """Waits until so many more operations have ended rightly."""
        with self.changed:
            wanted = self.report.counts["right"] + more
            return self.changed.wait_for(lambda: self.report.counts["right"] >= wanted, bound)

    def stop(self, bound: float) -> Report:
        """Ends it; what has not ended within the bound is in the report, with all stacks."""
        self.stopping.set()
        end = time.monotonic() + bound
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
        report, now = self.report, time.monotonic()
        for number, started in list(self.open.items()):
            report.counts["unended"] += 1
            report.outcomes.append(Outcome(number, "unended", self.kind, started, now))
        if self.open:
            report.stacks = stacks()
        if self.kind in COUNTED:
            self._compare(report, now)
        return report

    def _compare(self, report: Report, now: float) -> None:
        """What the callee has executed, against what the caller saw."""
        ledger = Ledger(self.ledger)
        for number in self.right:
            if (times := ledger.executed(number)) != 1:
                text = f"it was answered, and executed {times} times"
                report.outcomes.append(Outcome(number, "wrong", text, now, now))
        for outcome in list(report.outcomes):
            if (times := ledger.executed(outcome.number)) > 1:
                text = f"it failed, and was executed {times} times"
                report.outcomes.append(Outcome(outcome.number, "wrong", text, now, now))


def stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )


# What the callees run.


def serve(path: str, number: int, value: Any) -> Any:
    executed(path, number)
    return value + 1


def serve_nested(path: str, number: int, value: Any, further: str) -> Any:
    """Asks a third worker, which is the one that counts."""
    import torch.distributed.rpc as rpc

    return rpc.rpc_sync(further, serve, args=(path, number, value), timeout=TIMEOUT)


def make(path: str, number: int, numel: int) -> Any:
    import torch

    executed(path, number)
    return torch.full((numel,), float(number))


def look(rref: Any) -> float:
    value = rref.to_here(timeout=TIMEOUT)
    return float(value[0])


def scale(number: int, value: Any) -> Any:
    return value * float(number % 7 + 1)


# The operations.


def _tensor(number: int) -> Any:
    import torch

    return torch.full((SIZES[number % len(SIZES)],), float(number))


def _expect(result: Any, sent: Any) -> str | None:
    if result.shape == sent.shape and bool((result == sent + 1).all()):
        return None
    return f"{sent[0]} of {tuple(sent.shape)} came back as {result[:4]} of {tuple(result.shape)}"


def call(run: Run, number: int) -> str | None:
    import torch.distributed.rpc as rpc

    sent, to = _tensor(number), run.peers[0]
    if number % 3 == 0:
        result = rpc.rpc_sync(to, serve, args=(run.ledger, number, sent), timeout=TIMEOUT)
    else:
        result = rpc.rpc_async(to, serve, args=(run.ledger, number, sent), timeout=TIMEOUT).wait()
    return _expect(result, sent)


def nested(run: Run, number: int) -> str | None:
    import torch.distributed.rpc as rpc

    sent, (to, further) = _tensor(number), run.peers
    args = (run.ledger, number, sent, further)
    return _expect(rpc.rpc_async(to, serve_nested, args=args, timeout=TIMEOUT).wait(), sent)


def rref(run: Run, number: int) -> str | None:
    import torch.distributed.rpc as rpc

    numel, (to, further) = SIZES[number % len(SIZES)], run.peers
    made = rpc.remote(to, make, args=(run.ledger, number, numel), timeout=TIMEOUT)
    if number % 2:
        seen = float(made.to_here(timeout=TIMEOUT)[0])
    else:
        seen = rpc.rpc_sync(further, look, args=(made,), timeout=TIMEOUT)
    return None if seen == number else f"{number} came back as {seen}"


def autograd(run: Run, number: int) -> str | None:
    import torch
    import torch.distributed.autograd as dist_autograd
    import torch.distributed.rpc as rpc

    x = torch.ones(SIZES[number % len(SIZES)], requires_grad=True)
    with dist_autograd.context() as context:
        there = rpc.rpc_sync(run.peers[0], scale, args=(number, x), timeout=TIMEOUT)
        dist_autograd.backward(context, [(there * 2).sum()])
        gradient = dist_autograd.get_gradients(context)[x]
    wanted = 2.0 * (number % 7 + 1)
    return None if bool((gradient == wanted).all()) else f"gradient {gradient[:4]}, not {wanted}"


def published(run: Run, number: int) -> str | None:
    import weft

    sent = _tensor(number)
    return _expect(weft.call(f"{run.peers[0]}/chaos", sent, timeout=TIMEOUT), sent)


def pipe(run: Run, number: int) -> str | None:
    """Forward and backward of a pipeline in this process, against the same without it."""
    import torch
    from torch import nn

    import weft

    torch.manual_seed(number)
    plain = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    batch = torch.randn(16, 8)
    found = []
    for model in (plain, weft.Pipe(plain, chunks=1 + number % 4)):
        plain.zero_grad()
        output = model(batch)
        output = output if model is plain else output.local_value()
        output.square().sum().backward()
        found.append([output.detach(), *(p.grad.clone() for p in plain.parameters())])
    same = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*found, strict=True))
    return None if same else "the pipeline's output or gradients differ"


OPERATIONS: dict[str, Callable[[Run, int], str | None]] = {
    "call": call,
    "nested": nested,
    "rref": rref,
    "autograd": autograd,
    "published": published,
    "pipe": pipe,
}
COUNTED = ("call", "nested", "rref")
THREADS = {"pipe": 1}  # torch.manual_seed is the process's
_runs: list[Run] = []


def begin(kind: str, peers: list[str], ledger: str, first: int = 0) -> None:
    _runs.append(Run(kind, peers, ledger, THREADS.get(kind, 6), first))


def progress(more: int, bound: float = 20.0) -> bool:
    return _runs[-1].progress(more, bound)


def stop(bound: float) -> Report:
    report = _runs.pop().stop(bound)
    forget()
    return report
