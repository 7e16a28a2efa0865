"""Runs at the driver: what a Pipe is as an ``nn.Module`` when its layers are on workers. Parameters,
optimizers and checkpoints act there; what needs the layers here is refused.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed.rpc as rpc
from torch import Tensor
from typing_extensions import Self

from weft.pipe._driver.checkpoint import Checkpoint, folder_at, take_back
from weft.pipe._driver.gradients import ReplicatedGradients
from weft.pipe._driver.optimizer import PipeOptimizer
from weft.pipe._driver.remote_parts import RemoteParts, as_a_whole
from weft.pipe._pipe import Pipe
from weft.pipe._workers import shards, state

#: In the metadata of a Pipe's state, that of its layers: where the Pipe is in a module, torch gives it
#: no more than its own when it is loaded.
_OF_LAYERS = "layers"


class StateElsewhere(Pipe):
    """A Pipe by type only: it has no engine, partitions or devices. WorkerPipe sets the attributes."""

    _identity: str
    _parts: RemoteParts
    _workers: list[str]
    _gradients: ReplicatedGradients
    _checkpoint: Checkpoint | None

    def at_workers(self, function: Callable[..., Any], *args: Any) -> dict[str, Any]:
        """What a function of the workers gives at each of them; all run at the same time."""
        return self._parts.call(function, *args)

    @as_a_whole
    def optimizer(
        self, cls: Callable[..., torch.optim.Optimizer], /, **options: Any
    ) -> PipeOptimizer:
        """An optimizer at each worker, for the parameters of its stages.

        One that was made before goes, and its scheduler with it, also where this raises: then some
        workers have the new one, and none can be used until another call succeeds.

        Args:
            cls: its class, such as ``torch.optim.AdamW``, or a function that makes one, also with
                groups of the parameters that it is given.
            options: its arguments, without the parameters.
        """
        for former in ("optimizer", "scheduler"):
            self._parts.forget(former)
        made = self._parts.set_up("optimizer", state.make_optimizer, cls, options)
        return PipeOptimizer(self._parts, made, self._gradients)

    def remote_parameters(self) -> list[rpc.RRef]:
        """RRefs of the parameters of all stages, for ``torch.distributed.optim.DistributedOptimizer``."""
        return [one for found in self.at_workers(state.parameter_rrefs).values() for one in found]

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """``torch.nn.utils.clip_grad_norm_`` over the gradients of all stages.

        Returns:
            The norm before, on the CPU.
        """
        self._gradients.check()
        max_norm, norm_type = float(max_norm), float(norm_type)  # also "inf", as torch takes it
        found = self.at_workers(state.gradient_norms, norm_type).values()
        of_layer: dict[str, list[Tensor]] = {name: [] for name in self._parts.layers}
        for layer, norm in itertools.chain.from_iterable(found):
            of_layer[layer].append(norm)
        norms = [*itertools.chain.from_iterable(of_layer.values())]  # summed in torch's order
        total = torch.linalg.vector_norm(
            torch.stack(norms or [torch.zeros((), device="cpu")]), norm_type
        )
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)  # NaN stays: as torch's
        self.at_workers(state.scale_gradients, factor.item())
        return total

    # Checkpoints

    @as_a_whole
    def save_checkpoint(self, path: str | Path, background: bool = False) -> Checkpoint:
        """Writes the state of layers, optimizers and schedulers, each worker its own shard.

        ::

            checkpoint = pipe.save_checkpoint("model.ckpt", background=True)
            pipe.step(inputs, targets, loss=loss_fn)   # meanwhile
            checkpoint.wait()

        Args:
            path: a folder that all workers see, or a link to one; a relative one begins at the
                driver's current folder. It is replaced as a whole, when all have written.
            background: whether this returns as soon as each worker has copied its state, which takes
                as much memory again until it is written. One is written at a time.

        Raises:
            RuntimeError: a worker could not write; a checkpoint that was there stays. With
                ``background`` it is raised by ``wait()``, or else by the next of these calls. Or the
                last ``optimizer()`` or ``scheduler()`` failed, so that workers may have different ones.
            OSError: the folder cannot be made, or a file is there (NotADirectoryError).
        """
        folder = folder_at(path)
        for kept in ("optimizer", "scheduler"):
            self._parts.check_set_up(kept)
        self._wait_for_checkpoint()
        if background:
            self.at_workers(shards.take_snapshot)
        checkpoint = Checkpoint(folder, self._identity, self._parts, background)
        if background:
            self._checkpoint = checkpoint
        else:
            checkpoint.wait()
        return checkpoint

    def _wait_for_checkpoint(self) -> None:
        if self._checkpoint is not None:
            self._checkpoint.settle()
            self._checkpoint = None

    @as_a_whole
    def load_checkpoint(self, path: str | Path) -> None:
        """Takes up what :meth:`save_checkpoint` wrote, also with other stages or workers.

        A worker that was restarted gets its stages, optimizer and scheduler again. Make the optimizer
        first, so that its state has a place. Gradients are cleared. When this raises, such a worker
        has no stages, and the others may have taken up a part of the checkpoint. Where nothing is at
        the path because a driver was killed while it replaced the folder, the former one is put back.

        Raises:
            FileNotFoundError: a worker does not find the checkpoint.
            KeyError: it is of other layers: it has or lacks some of their parameters or buffers.
            RuntimeError: a worker is lost and not back yet: try again.
            ValueError: a remote module of a restarted worker was given as an RRef.
        """
        folder = os.path.abspath(path)
        self._wait_for_checkpoint()
        take_back(path)
        with self._parts.with_missing():
            self.at_workers(shards.read_shards, folder, self._parts.layers)
        self.zero_grad()

    # nn.Module's own methods, acting at the workers

    def state_dict(
        self,
        *,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """The state of all layers, on the CPU, under the plain Sequential's names."""
        whole = state.with_metadata({}, {}) if destination is None else destination
        found = self.at_workers(state.layers_state).values()
        layers = self._in_order(one._metadata for one in found)
        whole.update({prefix + key: value for key, value in self._in_order(found).items()})
        if hasattr(whole, "_metadata"):
            own = {"version": self._version, _OF_LAYERS: layers}
            whole._metadata[prefix[:-1]] = own
            whole._metadata.update({prefix + key: one for key, one in layers.items()})
        return whole

    plain_state_dict = state_dict

    def _in_order(self, found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """What the workers have of their layers, in the order of the plain Sequential."""
        place = {name: number for number, name in enumerate(self._parts.layers)}
        items = itertools.chain.from_iterable(one.items() for one in found)
        return dict(sorted(items, key=lambda item: place[item[0].partition(".")[0]]))

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Called by ``load_state_dict`` of this Pipe or of a module that holds it."""
        if local_metadata.get("assign_to_params_buffers", False):
            raise NotImplementedError(
                "assign=True does not work with a Pipe with a schedule, which copies the state"
            )
        own = {
            key.removeprefix(prefix): value
            for key, value in state_dict.items()
            if key.startswith(prefix)
        }
        metadata = getattr(state_dict, "_metadata", None)
        if metadata is None:
            metadata = local_metadata.get(_OF_LAYERS, {})
        used: set[str] = set()
        own_state = state.with_metadata(own, metadata)
        for lacking, found in self.at_workers(state.load_layers, own_state).values():
            missing_keys += [prefix + key for key in lacking]
            used.update(found)
        if strict:
            unexpected_keys += [prefix + key for key in own if key not in used]

    @as_a_whole
    def train(self, mode: bool = True) -> Self:
        self._parts.set_up("mode", state.change, "train", mode)
        self.training = mode
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.at_workers(state.change, "zero_grad", set_to_none)
        self._gradients.broken = False

    # What needs the layers here

    def __getitem__(self, index: int) -> NoReturn:
        _refuse("its layers are on workers")

    def __iter__(self) -> NoReturn:
        _refuse("its layers are on workers")

    def named_parameters(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused, and with it ``parameters()``: they are on workers."""
        _refuse(
            "its parameters are on workers: use pipe.optimizer, pipe.clip_grad_norm_, pipe.state_dict"
        )

    def named_buffers(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused, and with it ``buffers()``: they are on workers."""
        _refuse("its buffers are on workers: use pipe.state_dict")

    def named_children(self) -> NoReturn:
        """Refused, and with it ``children()`` and ``apply()``: the layers are on workers."""
        _refuse("its layers are on workers")

    def named_modules(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused, and with it ``modules()``: the layers are on workers."""
        _refuse("its layers are on workers")

    def _apply(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse("its layers cannot be moved or converted: do that before the Pipe is made")

    def memory_report(self, *inputs: Any) -> NoReturn:
        """Refused: only for stages of this process."""
        _refuse("memory_report is for stages of this process")

    def __getstate__(self) -> NoReturn:
        _refuse("it cannot be copied or pickled: its layers are on workers")


def _refuse(why: str) -> NoReturn:
    raise NotImplementedError(f"This Pipe has a schedule: {why}")
