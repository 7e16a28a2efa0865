"""The table at the end of a run: who did what, and the figures."""

from __future__ import annotations

import statistics

from examples.digits.config import EVALUATOR, SERVER, TRAINERS
from examples.digits.results import Results, quantile
from examples.digits.trainer import PHASES


def table(results: Results) -> str:
    """Who did what, and the figures of the run."""
    return "\n".join(["", *workers(results), *figures(results)])


def workers(results: Results) -> list[str]:
    """A line for each worker, between rules."""
    front, classifier = results.parameters
    steps = results.rounds
    did = {SERVER: f"classifier, {classifier:,} parameters; {steps} rounds"}
    for name, told in zip(TRAINERS, results.trainers, strict=True):
        did[name] = f"front end, {front:,} parameters; {told.images} images, {steps} steps"
    did[EVALUATOR] = f"{results.tested} test images, {len(results.accuracies)} times"
    rows = [("worker", "had and did", "sent", "received")]
    for name, (sent, received) in results.moved().items():
        rows.append((name, did[name], megabytes(sent), megabytes(received)))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        f"{name:<{widths[0]}}  {what:<{widths[1]}}  {sent:>{widths[2]}}  {received:>{widths[3]}}"
        for name, what, sent, received in rows
    ]
    rule = "-" * len(lines[0])
    return [rule, lines[0], rule, *lines[1:], rule]


def figures(results: Results) -> list[str]:
    """What was asked for, what was reached, what it cost."""
    median, late = statistics.median(results.steps), quantile(results.steps, 0.95)
    rows = [row for told in results.trainers for row in told.phases]
    means = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    parts = ", ".join(f"{name} {1e3 * mean:.1f}" for name, mean in zip(PHASES, means, strict=True))
    moved = sum(sent for sent, _ in results.moved().values())
    tensors = sum(sent for sent, _ in results.estimate().values())
    if results.measured:
        counted = f"counted by the agents; tensors alone {megabytes(tensors)}"
    else:
        counted = "an estimate from tensor sizes; the agent does not count"
    wrong = f"{len(results.mistakes)} of {results.tested} wrong"
    asked = f"{100 * results.config.threshold:g}% asked for"
    verdict = "reached" if results.passed else "NOT reached"
    return [
        f"backend        {results.config.backend}, seed {results.config.seed}",
        f"time per step  {1e3 * median:.1f} ms median, {1e3 * late:.1f} ms 95th percentile",
        f"  mean         {1e3 * sum(means):.1f} ms: {parts}",
        f"bytes moved    {megabytes(moved)}, {counted}",
        f"test accuracy  {results.accuracy:.2%} ({wrong}); {asked}, {verdict}",
        f"time           {results.seconds:.1f} s, {results.config.epochs} epochs",
        f"written        {results.config.out}: loss.png, results.json",
    ]


def megabytes(count: int) -> str:
    """Bytes as a person reads them."""
    return f"{count / 1e6:.1f} MB"
