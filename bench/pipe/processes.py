"""The metrics of pipelines whose stages are in processes of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.pipe import metrics, stages
from bench.pipe.metrics import Figures

# Seconds of "forward" and of "both ways".
Ways = Callable[[list[nn.Module], Tensor, int], dict[str, float]]
Both = Callable[[list[nn.Module], Tensor, int, int], dict[str, float]]


def measure(
    name: str, by_hand: Ways, both: Both, input_gradient: bool = True, scripts: bool = False
) -> Figures:
    """The metric of this name, as far as there is one for stages in processes of their own.

    Args:
        name: of the metric.
        by_hand: what the layers take in one process, of (layers, batch, micro-batches).
        both: what they take as a pipeline, also of how often it is measured.
        input_gradient: whether the batch may want a gradient, as metrics.overlap_busy has it.
        scripts: whether stages may be scripted.
    """
    torch.manual_seed(0)
    scripted = scripts and name == "overhead_scripted"
    if name == "overhead" or scripted:
        layers: list[nn.Module] = [stages.tiny() for _ in range(metrics.STAGES)]
        if scripted:
            layers = [torch.jit.script(layer) for layer in layers]
        kind = "ScriptModule" if scripted else "Python"
        figures: Figures = {}
        for chunks in (metrics.TINY_CHUNKS, metrics.LONG_CHUNKS):
            batch = torch.randn(chunks * metrics.TINY_ROWS, stages.TINY)
            hand, ours = by_hand(layers, batch, chunks), both(layers, batch, chunks, 60)
            task = (
                "a task" if chunks == metrics.TINY_CHUNKS else f"a task of {chunks} micro-batches"
            )
            for key, label in (("forward", "forward"), ("both ways", "with backward")):
                cost = metrics._per_task(ours[key], hand[key], chunks)
                figures[f"{task}, {kind} stage, {label} us"] = cost
        return figures
    if name == "steady":
        return _steady(by_hand, both, input_gradient)
    if name not in ("overlap_busy", "overlap_asleep"):
        return {}
    overlaps: Figures = {}
    asleep = name == "overlap_asleep"
    make = stages.Asleep if asleep else stages.busy
    layers = [make() for _ in range(metrics.STAGES)]
    for chunks in metrics.OVERLAPS:
        shape = (chunks, 1) if asleep else (chunks * metrics.BUSY_ROWS, stages.WIDE)
        batch = torch.randn(*shape, requires_grad=input_gradient and not asleep)
        hand, ours = by_hand(layers, batch, chunks), both(layers, batch, chunks, 8)
        for way in ("forward", "both ways"):
            label = "asleep" if asleep else "busy"
            overlaps[f"overlap, {label}, {way}, m={chunks} x"] = hand[way] / ours[way]
    return overlaps


def _steady(by_hand: Ways, both: Both, input_gradient: bool) -> Figures:
    figures: Figures = {}
    for kind in ("busy", "asleep"):
        layers, batch = metrics.steady_layers(kind == "asleep")
        batch = batch.detach().requires_grad_(input_gradient and kind == "busy")
        chunks = metrics.STEADY_CHUNKS
        hand = by_hand(layers, batch, chunks)
        ours = both(layers, batch, chunks, metrics.STEADY_BATCHES)
        for way in ("forward", "both ways"):
            median, _, one = metrics.steady_names(kind, way)
            figures[median] = hand[way] / ours[way]
            figures[one] = ours[way] * 1e3
    return figures
