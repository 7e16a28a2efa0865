"""Pipes over the three workers of the tests, and what they hold: what a driver runs."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch
import worker_models as models
from torch import nn

CROSS_ENTROPY = nn.CrossEntropyLoss()


def pipe_of(
    places: Sequence[str], chunks: int, schedule: str, checkpoint: str = "never", seed: int = 0
):
    """A Pipe of the four layers, each at the worker with that digit; of several, at each of them."""
    return pipe_of_layers(models.layers(seed), places, chunks, schedule, checkpoint)


def pipe_of_layers(
    layers, places: Sequence[str], chunks: int, schedule: str, checkpoint: str, **options: object
):
    import weft

    placed = [
        layer if place == "0" else weft.WithDevice(layer, [f"worker{one}/cpu" for one in place])
        for layer, place in zip(layers, places, strict=True)
    ]
    return weft.Pipe(nn.Sequential(*placed), chunks, checkpoint, schedule=schedule, **options)


def held_anywhere(pipe) -> int:
    return sum(pipe.at_workers(held_here).values())


def held_here(pipe: str) -> int:
    from weft.pipe._workers.part import part_of

    part = part_of(pipe)
    assert len(part.arrivals) == 0
    return sum(stage.held for stage in part.stages.values())


def graphs_held(pipe) -> int:
    """Micro-batches that graphs keep for later backwards, at all workers."""
    return sum(pipe.at_workers(graphs_held_here).values())


def graphs_held_here(pipe: str) -> int:
    from weft.pipe._workers.part import part_of

    return sum(graph.kept for graph in part_of(pipe).graphs)


def runs_alive(pipe: str) -> int:
    from weft.pipe._workers.run import Run

    return sum(isinstance(one, Run) for one in gc.get_objects())


def collects(on: bool) -> None:
    (gc.enable if on else gc.disable)()


def gradients_here(pipe: str) -> dict[str, torch.Tensor]:
    from weft.pipe._workers.part import part_of
    from weft.pipe._workers.state import parameters_of

    return {name: parameter.grad for name, parameter in parameters_of(part_of(pipe).layers).items()}


def gradients_of(pipe) -> dict[str, torch.Tensor]:
    return {
        name: grad
        for found in pipe.at_workers(gradients_here).values()
        for name, grad in found.items()
    }


def check_gradients(pipe, plain: nn.Module, **tolerance: float) -> None:
    """At every worker, those of the plain module; replicas of a stage have them all."""
    at_workers = pipe.at_workers(gradients_here).values()
    assert {name for name, _ in plain.named_parameters()} <= {
        name for found in at_workers for name in found
    }
    for found in at_workers:
        for name, grad in found.items():
            torch.testing.assert_close(grad, plain.get_parameter(name).grad, **tolerance)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name
