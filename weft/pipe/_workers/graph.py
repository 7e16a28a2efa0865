"""What a worker keeps of a forward for backwards that come later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from weft.pipe._workers.micro_batch import Held
from weft.pipe._workers.parcels import check_visible
from weft.pipe._workers.stage import Stage
from weft.pipe._workers.values import joined, leaves, placed, wants_gradient


class Graph:
    """Held micro-batches of a worker's stages, and how its output was made of them.

    It is the value of an RRef of the driver's, so it is destroyed when the driver drops that or is lost.
    """

    def __init__(self) -> None:
        self._held: dict[int, dict[int, Held]] = {}  # by stage and micro-batch
        self._parts: list[list[Tensor]] = []  # of the output, those that want gradients
        self._whole: list[Any] = []  # GradientEdges of the joined output

    def keep(self, stages: Mapping[int, Stage]) -> None:
        """Takes what the stages hold."""
        self._held = {number: stage.give_held() for number, stage in stages.items()}

    def join(self, parts: list[Any]) -> tuple[Any, list[bool]]:
        """The whole output without a graph, and for each of its tensors whether it wants gradients."""
        check_visible(parts)
        self._parts = [[leaf for leaf in leaves(part) if wants_gradient(leaf)] for part in parts]
        with torch.enable_grad():
            value = joined(parts)
        tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
        wanted = [tensor.requires_grad for tensor in tensors]
        self._whole = [
            torch.autograd.graph.get_gradient_edge(tensor)
            for tensor in tensors
            if tensor.requires_grad
        ]
        return pytree.tree_map_only(Tensor, Tensor.detach, value), wanted

    def split(
        self, gradients: Sequence[Tensor | None], device: torch.device
    ) -> list[list[Tensor | None]]:
        """The gradients of the micro-batches' outputs, from those of the whole output."""
        flat = [leaf for part in self._parts for leaf in part]
        pairs = zip(self._whole, placed(list(gradients), device), strict=True)
        given = [(edge, found) for edge, found in pairs if found is not None]
        found: Sequence[Tensor | None] = [None] * len(flat)
        if given:
            edges, of_edges = zip(*given, strict=True)
            found = torch.autograd.grad(edges, flat, of_edges, retain_graph=True, allow_unused=True)
        left = iter(found)
        return [[next(left) for _ in part] for part in self._parts]

    def lend(self, stages: Mapping[int, Stage], retain: bool) -> None:
        """Gives the stages back what they held; without ``retain`` this keeps nothing of it.

        Raises:
            RuntimeError: there is nothing: a backward has used it, or the Pipe was closed.
        """
        if self._held.keys() != stages.keys():
            raise RuntimeError(
                "the graph of this output is gone: a backward without retain_graph=True has used it, or "
                "the Pipe was closed"
            )
        for number, stage in stages.items():
            stage.take_held(dict(self._held[number]))
        if not retain:
            self.drop()

    @property
    def kept(self) -> int:
        """The number of micro-batches of which something is kept."""
        return sum(len(held) for held in self._held.values())

    def drop(self) -> None:
        """Drops what the stages held; how the output was made stays."""
        self._held = {}
