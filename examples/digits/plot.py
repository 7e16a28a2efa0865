"""Draws the loss curve, the accuracy, and the digits that were taken for others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.digits.results import Mistake

SHOWN = 8


def draw(
    losses: Sequence[float],
    accuracies: Sequence[float],
    mistakes: Sequence[Mistake],
    path: Path,
) -> None:
    """Writes the picture to this path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    figure, axes = pyplot.subplot_mosaic(
        [["L"] * SHOWN, [str(i) for i in range(SHOWN)]], height_ratios=[5, 1], figsize=(8, 5.5)
    )
    curve = axes["L"]
    per_epoch = len(losses) / len(accuracies)
    epochs = [(step + 1) / per_epoch for step in range(len(losses))]
    curve.plot(epochs, losses, color="tab:blue", linewidth=1, label="training loss")
    curve.set(xlabel="epoch", ylabel="cross entropy", yscale="log")
    curve.set_title("digits, learned over four processes", loc="left")
    curve.xaxis.set_major_locator(MaxNLocator(integer=True))
    right = curve.twinx()
    ends = range(1, len(accuracies) + 1)
    right.plot(ends, [100 * a for a in accuracies], "o-", color="tab:orange", markersize=3)
    right.set(ylabel="test accuracy (%)", ylim=(min(85, 100 * min(accuracies)), 100.5))
    right.annotate(
        f"{accuracies[-1]:.2%}",
        (len(accuracies), 100 * accuracies[-1]),
        xytext=(-6, -14),
        textcoords="offset points",
        ha="right",
    )
    curve.plot([], [], "o-", color="tab:orange", markersize=3, label="test accuracy")
    curve.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    for place in range(SHOWN):
        small = axes[str(place)]
        small.axis("off")
        if place < len(mistakes):
            one = mistakes[place]
            small.imshow(1 - one.image.numpy(), cmap="gray")
            small.set_title(f"{one.label} as {one.predicted}", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
