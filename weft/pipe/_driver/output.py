"""The output of a forward with gradients: its graph at the workers, and the node that stands for it
in the driver's graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
import torch.distributed.rpc as rpc
from torch import Tensor
from torch.utils import _pytree as pytree

from weft import _C
from weft.pipe._workers.micro_batch import Backward
from weft.pipe._workers.values import placed_like

#: Runs the backward at the workers: gradients of the output in, those of the inputs out.
RunBackward = Callable[[Sequence[Tensor | None], Backward], list[Tensor | None]]


class ForwardGraph:
    """What the workers keep of a forward. They drop it when this is gone, and after a backward.

    Args:
        workers: of the stages.
        inputs: the tensors of the micro-batches that want gradients.
        run: runs a backward.
    """

    def __init__(self, workers: Sequence[str], inputs: list[Tensor], run: RunBackward) -> None:
        self.inputs = inputs
        #: Only the node of this graph leads to it.
        self.leaf = torch.empty(0, requires_grad=True)
        self._workers = list(workers)
        self._run: RunBackward | None = run
        self._context: int | None = None

    def attach(self, value: Any, wanted: list[bool]) -> Any:
        """The output, with tensors that lead to the workers' graph if they want gradients."""
        self._context = _C.pipe.current_context()
        leaves, structure = pytree.tree_flatten(value)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        with torch.enable_grad():  # wherever it is taken
            made = iter(_ThroughWorkers.apply(self, tensors, wanted, self.leaf, *self.inputs))
        leaves = [next(made) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, structure)

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Runs the stages' backward as part of the backward that runs on this thread."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph=True does not work through a Pipe with a schedule: its graph is on workers"
            )
        if self._run is None:
            raise RuntimeError(
                "this is the second backward through the output of a Pipe, and the first has freed the "
                "graph at the workers: give that one retain_graph=True"
            )
        kind = _C.pipe.backward_kind(self.leaf)
        context = None
        if kind == _C.pipe.BackwardKind.distributed:
            context = self._join_context()
        retain = torch._C._autograd._get_current_graph_task_keep_graph()
        run = self._run
        if not retain:
            self._run = None
        how = Backward(retain, kind != _C.pipe.BackwardKind.inputs, context)
        found = run(gradients, how) or [None] * len(self.inputs)
        return placed_like(found, self.inputs)

    def _join_context(self) -> int:
        if self._context is None:
            raise RuntimeError(
                "the output of the Pipe was taken outside of the torch.distributed.autograd.context() of "
                "this backward: call to_here() inside"
            )
        _C.pipe.join_context(self._context, self._workers)
        return self._context


class _ThroughWorkers(torch.autograd.Function):
    """The pipeline as one node of the driver's graph, from its inputs to its output."""

    @staticmethod
    def forward(
        ctx: Any,
        graph: ForwardGraph,
        tensors: list[Tensor],
        wanted: list[bool],
        _leaf: Tensor,
        *_inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.graph = graph
        ctx.wanted = wanted
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(one for one, wants in zip(tensors, wanted, strict=True) if not wants)
        )
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        given = [one for one, wants in zip(gradients, ctx.wanted, strict=True) if wants]
        return (None, None, None, None, *ctx.graph.backward(given))


def value_of(output: rpc.PyRRef) -> Any:
    """The output itself, out of what its owner keeps for the driver."""
    return output.local_value()[0]


class PipeOutput:
    """An RRef of a Pipe's output, owned by the last stage's worker, whose value has a graph here.

    ::

        loss = loss_fn(pipe(inputs).to_here(), targets)
        loss.backward()

    While it or what came of its value lives, and until a backward, the workers keep activations.
    """

    def __init__(self, rref: rpc.PyRRef, graph: ForwardGraph) -> None:
        self._rref = rref
        self._graph: ForwardGraph | None = graph
        self._value: Any = None

    def to_here(self, timeout: float = rpc.constants.UNSET_RPC_TIMEOUT) -> Any:
        """The output, the same tensors at each call.

        Args:
            timeout: seconds that the first call waits at most; 0: no limit.
        """
        if self._graph is not None:
            self._value = self._graph.attach(*self._rref.to_here(timeout))
            self._graph = None
        return self._value

    def rpc_sync(self, timeout: float = rpc.constants.UNSET_RPC_TIMEOUT) -> Any:
        """As torch's RRef does: calls methods of the output at its owner, without a graph."""
        return self._without_graph().rpc_sync(timeout)

    def rpc_async(self, timeout: float = rpc.constants.UNSET_RPC_TIMEOUT) -> Any:
        """The same; the methods give futures."""
        return self._without_graph().rpc_async(timeout)

    def remote(self, timeout: float = rpc.constants.UNSET_RPC_TIMEOUT) -> Any:
        """The same; the methods give RRefs."""
        return self._without_graph().remote(timeout)

    def _without_graph(self) -> rpc.PyRRef:
        return rpc.remote(self._rref.owner(), value_of, args=(self._rref,))

    def owner(self) -> rpc.WorkerInfo:
        """The last stage's worker."""
        return self._rref.owner()

    def owner_name(self) -> str:
        """Its name."""
        return self._rref.owner_name()

    def is_owner(self) -> bool:
        """False: with the last stage in this process, a Pipe gives an RRef of torch's."""
        return self._rref.is_owner()

    def confirmed_by_owner(self) -> bool:
        """Whether the owner knows of it."""
        return self._rref.confirmed_by_owner()

    def local_value(self) -> NoReturn:
        """Refused: the value is at the last stage's worker."""
        raise RuntimeError(
            f"the output of the Pipe is on worker '{self.owner_name()}': call to_here()"
        )

    def __reduce__(self) -> NoReturn:
        raise RuntimeError(
            "the graph of a Pipe's output begins at its driver: send the tensors that to_here() gives, or "
            "run the Pipe under torch.no_grad() for an RRef that can be sent"
        )

    def __repr__(self) -> str:
        return f"PipeOutput(owner={self.owner_name()!r})"
