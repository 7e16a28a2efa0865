"""The Pipe: its partitions and their state; the engine in C++ runs them."""

from __future__ import annotations

import atexit
import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed import rpc

from weft import _C
from weft.pipe import _partition
from weft.pipe._batchnorm import DeferredBatchNorm
from weft.pipe._inputs import NoChunk, check_checkpoint, check_chunks, check_inputs
from weft.pipe._memory import MemoryReport, memory_report
from weft.pipe._timeline.recording import Timeline, recording
from weft.pipe.skip import verify_skippables
from weft.pipe.skip._layout import skip_layout

if TYPE_CHECKING:
    from weft.pipe._driver.checkpoint import Checkpoint
    from weft.pipe._driver.optimizer import PipeOptimizer

is_checkpointing = _C.pipe.is_checkpointing
is_recomputing = _C.pipe.is_recomputing


# To end, the engines' threads need the interpreter: so they end first.
_pipes: weakref.WeakSet[Pipe] = weakref.WeakSet()


@atexit.register
def _rest() -> None:
    for pipe in list(_pipes):
        pipe._engine.rest()


class Pipe(nn.Module):
    """Runs an ``nn.Sequential`` as a pipeline: its partitions work on micro-batches at the same time.

    Neighbouring children on one accelerator form a partition; each child on the CPU is a partition
    of its own. A child without parameters or buffers runs on the CPU unless it is wrapped in
    :class:`WithDevice`. Call ``init_rpc`` first.

    ::

        pipe = weft.Pipe(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), chunks=4)
        loss = pipe(torch.ones(8, 2)).local_value().sum()
        loss.backward()

    Args:
        module: the layers, each already on its device.
        chunks: the number of micro-batches. An input with fewer rows gives fewer.
        checkpoint: which micro-batches keep no activations in training and are recomputed in
            backward: ``"always"`` (all), ``"except_last"`` or ``"never"`` (none).
        deferred_batch_norm: batch norms update their running statistics once per mini-batch,
            with the statistics of the whole mini-batch.
        schedule: ``"gpipe"``, ``"1f1b"``, ``"interleaved"`` or ``"zb"``: the children are stages on
            workers (:class:`weft.RemoteModule`, or :class:`WithDevice` with ``"worker/device"``);
            train with :meth:`step`. See docs/guide/pipelines.md.

    Raises:
        RuntimeError: RPC is not initialised.
        TypeError: ``module`` is no ``nn.Sequential``, its skip connections do not match, or
            ``chunks`` is no int.
        ValueError: another argument cannot be used.
    """

    #: Whether forward wraps the output in an RRef, which takes an RPC agent.
    _gives_rref = True

    #: The subclass that a schedule asks for; it sets itself.
    _over_workers: ClassVar[type[Pipe]]

    def __new__(cls, *args: Any, schedule: str | None = None, **kwargs: Any) -> Pipe:
        return super().__new__(Pipe._over_workers if cls is Pipe and schedule is not None else cls)

    def __init__(
        self,
        module: nn.Sequential,
        chunks: int = 1,
        checkpoint: str = "except_last",
        deferred_batch_norm: bool = False,
        *,
        schedule: str | None = None,
    ) -> None:
        super().__init__()
        if schedule is not None:
            raise TypeError(f"{type(self).__name__} takes no schedule: weft.Pipe itself does")
        if self._gives_rref and not rpc.api._is_current_rpc_agent_set():
            raise RuntimeError(
                "Please initialize RPC framework for Pipe using torch.distributed.rpc.init_rpc "
                "or weft.init_rpc(name, world_size=1): a Pipe returns an RRef"
            )
        chunks, checkpoint = check_chunks(chunks), check_checkpoint(checkpoint)
        _partition.check_sequential(module)
        verify_skippables(module)
        if deferred_batch_norm:
            module = DeferredBatchNorm.convert_deferred_batch_norm(module, chunks)
        partitions, self.devices, names = _partition.partitions_of(module)
        _partition.check_shared_parameters(partitions, self.devices)
        self._shared_statistics = _partition.shared_statistics(partitions, self.devices)
        #: The partitions, in order.
        self.partitions = nn.ModuleList(partitions)
        #: The number of micro-batches.
        self.chunks = chunks
        #: The checkpoint mode.
        self.checkpoint = checkpoint
        #: For each layer, its keys' beginning here and in the plain Sequential.
        self._plain_names = {
            f"partitions.{j}.{k}.": f"{name}."
            for j, layers in enumerate(names)
            for k, name in enumerate(layers)
        }
        self.register_load_state_dict_pre_hook(_accept_plain_names)
        self._build_engine()

    def _build_engine(self) -> None:
        layout = skip_layout(list(self.partitions))
        self._engine = _C.pipe.Engine(
            list(self.partitions),
            self.devices,
            list(layout.values()),
            {skip: index for index, skip in enumerate(layout)},
            NoChunk,
        )
        self._built_of = tuple(self.partitions)
        _pipes.add(self)

    def forward(self, *inputs: Any) -> rpc.RRef:
        """Runs a mini-batch.

        Args:
            inputs: at least one tensor; all tensors are on the first partition's device and are split
                along dimension 0. Other values, and tensors wrapped in :class:`NoChunk`,
                are given to every micro-batch.

        Returns:
            An RRef; ``.local_value()`` is the output, on the last partition's device: tensors
            joined along dimension 0, other values as a list of one per micro-batch.

        Raises:
            TypeError: no input is a tensor.
            ValueError: a tensor is on another device than the first partition, or only some
                partitions are on ``meta``.
            RuntimeError: ``partitions`` has other modules than those that the Pipe was built of.
        """
        return rpc.RRef(self._run(*inputs))

    def _run(self, *inputs: Any) -> Any:
        check_inputs(inputs, self.chunks, self.devices)
        if tuple(self.partitions) != self._built_of:
            raise RuntimeError(
                "the partitions of this Pipe were replaced, and it would run those that it was built "
                "of: replace layers within a partition, or build a Pipe of the new modules"
            )
        if self._shared_statistics and self.training and self.chunks > 1:
            raise ValueError(self._shared_statistics)
        if not self.devices:
            return inputs[0] if len(inputs) == 1 else inputs
        mode = getattr(_C.pipe.Checkpoint, self.checkpoint)
        return self._engine.run(inputs, self.chunks, self.partitions[0].training, mode)

    def memory_report(self, *inputs: Any) -> MemoryReport:
        """The memory of each partition in training with such a mini-batch.

        Runs the forward of one micro-batch through copies of the layers, and changes nothing::

            print(pipe.memory_report(torch.ones(8, 2)))

        Args:
            inputs: as for :meth:`forward`.
        """
        parts: list[Any] = list(self.partitions)
        return memory_report(parts, self.devices, self.chunks, self.checkpoint, inputs)

    def record(self) -> AbstractContextManager[Timeline]:
        """Records when each task runs: ``with pipe.record() as timeline: …``, see ``timeline.save``."""
        return recording(self._engine, self.devices)

    def __len__(self) -> int:
        """The number of layers."""
        return sum(len(partition) for partition in self.partitions)

    def __getitem__(self, index: int) -> nn.Module:
        """A layer, counted over all partitions; negative from the end."""
        layers = list(self)
        if not -len(layers) <= index < len(layers):
            raise IndexError(f"a Pipe of {len(layers)} layers has no layer {index}")
        return layers[index]

    def __iter__(self) -> Iterator[nn.Module]:
        """The layers, in order."""
        for partition in self.partitions:
            yield from partition

    def plain_state_dict(self) -> dict[str, Any]:
        """The state under the names that the plain Sequential would give it.

        :meth:`load_state_dict` takes both these and the Pipe's own.
        """
        state = self.state_dict()
        plain = OrderedDict((_renamed(key, self._plain_names), state[key]) for key in state)
        plain._metadata = _renamed_modules(state._metadata, self._plain_names)  # type: ignore
        return plain

    # With a schedule. WorkerPipe has these, and gives them its texts.

    def step(
        self,
        inputs: Any,
        targets: Any,
        loss: Callable[[Any, Any], Tensor],
        reduction: str | None = None,
    ) -> Tensor:
        """Runs forward, loss and backward of a mini-batch; only with a schedule."""
        _refuse_without_schedule("step")

    def optimizer(
        self, cls: Callable[..., torch.optim.Optimizer], /, **options: Any
    ) -> PipeOptimizer:
        """An optimizer at each worker, for the parameters of its stages; only with a schedule."""
        _refuse_without_schedule("optimizer")

    def remote_parameters(self) -> list[rpc.RRef]:
        """RRefs of the parameters of all stages; only with a schedule."""
        _refuse_without_schedule("remote_parameters")

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Limits the norm of the gradients of all stages; only with a schedule."""
        _refuse_without_schedule("clip_grad_norm_")

    def save_checkpoint(self, path: str | Path, background: bool = False) -> Checkpoint:
        """Writes the state of layers and optimizers, each worker its own; only with a schedule."""
        _refuse_without_schedule("save_checkpoint")

    def load_checkpoint(self, path: str | Path) -> None:
        """Takes up what :meth:`save_checkpoint` wrote; only with a schedule."""
        _refuse_without_schedule("load_checkpoint")

    def close(self) -> None:
        """Lets the workers drop their stages; only with a schedule."""
        _refuse_without_schedule("close")

    # A copy gets an engine of its own; threads and measurements stay with the original.
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_engine"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._build_engine()

    # The user chooses the devices before the Pipe is built.
    def cuda(self, device: torch.device | int | None = None) -> Pipe:
        """Refused: the layers stay on the devices that they were built on."""
        _deny_moving()

    def cpu(self) -> Pipe:
        """Refused: the layers stay on the devices that they were built on."""
        _deny_moving()

    def to_empty(self, *args: Any, **kwargs: Any) -> Pipe:
        """Refused: the layers stay on the devices that they were built on."""
        _deny_moving()

    def to(self, *args: Any, **kwargs: Any) -> Pipe:
        """Takes a dtype only: the layers stay on the devices that they were built on."""
        if "device" in kwargs or "tensor" in kwargs:
            _deny_moving()
        if args and isinstance(args[0], (torch.device, int, str, Tensor)):
            _deny_moving()
        return super().to(*args, **kwargs)


# As __init__, not as __new__: help() and editors show it.
Pipe.__signature__ = inspect.signature(functools.partial(Pipe.__init__, None))  # type: ignore


def _renamed(key: str, names: dict[str, str]) -> str:
    end = key.find(".") + 1
    while end > 0 and key[:end] not in names:
        end = key.find(".", end) + 1
    return names[key[:end]] + key[end:] if end else key


def _renamed_modules(metadata: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Of a state's metadata what there is of these layers and of what is in them."""
    return OrderedDict(
        (_renamed(f"{name}.", names)[:-1], one)
        for name, one in metadata.items()
        if f"{name}.".startswith(tuple(names))
    )


def _accept_plain_names(pipe: Pipe, state: dict[str, Any], prefix: str, *_unused: Any) -> None:
    """Renames the keys of a plain Sequential's state to those of a Pipe."""
    if any(key.startswith(f"{prefix}partitions.") for key in state):
        return
    names = {plain: own for own, plain in pipe._plain_names.items()}
    for key in [key for key in state if key.startswith(prefix)]:
        state[prefix + _renamed(key[len(prefix) :], names)] = state.pop(key)
    metadata = getattr(state, "_metadata", None)  # none where the Pipe is in another module
    if metadata is not None:  # load_state_dict looks there for the versions of the layers
        metadata.update(_renamed_modules(metadata, names))


def _refuse_without_schedule(method: str) -> NoReturn:
    raise NotImplementedError(
        f"This Pipe has no schedule, and {method} is for stages on workers: give it one, such as "
        'schedule="1f1b"'
    )


def _deny_moving() -> NoReturn:
    raise TypeError(
        "denied to move parameters and buffers, because Pipe should manage device placement: move "
        "the layers before they are given to Pipe"
    )
