"""Leaves the results: files in the results folder, a table on the terminal."""

from __future__ import annotations

import json
import statistics

from examples.digits import plot
from examples.digits.results import Results, quantile
from examples.digits.table import table


def write(results: Results) -> None:
    """Prints the table; writes results.json and loss.png."""
    out = results.config.out
    out.mkdir(parents=True, exist_ok=True)
    plot.draw(results.losses, results.accuracies, results.mistakes, out / "loss.png")
    moved = results.moved()
    figures = {
        "backend": results.config.backend,
        "ddp": results.config.ddp,
        "seed": results.config.seed,
        "epochs": results.config.epochs,
        "threshold": results.config.threshold,
        "accuracy": results.accuracy,
        "passed": results.passed,
        "accuracy_by_epoch": results.accuracies,
        "loss_by_step": results.losses,
        "seconds": results.seconds,
        "steps": results.rounds,
        "step_ms_median": 1e3 * statistics.median(results.steps),
        "step_ms_p95": 1e3 * quantile(results.steps, 0.95),
        "bytes_are": "measured" if results.measured else "estimated",
        "bytes_by_worker": {name: list(pair) for name, pair in moved.items()},
        "tensor_bytes_by_worker": {name: list(pair) for name, pair in results.estimate().items()},
    }
    (out / "results.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(table(results), flush=True)
