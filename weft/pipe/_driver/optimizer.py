"""The driver's hold on the optimizers at the workers, one each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.pipe._driver.gradients import ReplicatedGradients
from weft.pipe._driver.remote_parts import RemoteParts
from weft.pipe._workers import state


class PipeScheduler:
    """A learning-rate scheduler at each worker. Made by :meth:`PipeOptimizer.scheduler`."""

    def __init__(self, parts: RemoteParts) -> None:
        self._parts = parts

    def step(self, *args: Any) -> None:
        """Steps all of them, with these arguments, such as the loss for ``ReduceLROnPlateau``."""
        self._parts.call(state.call_optimizer, "scheduler", "step", *args)

    def get_last_lr(self) -> list[float]:
        """The learning rates, which are the same at all workers."""
        rates = self._parts.call(state.call_optimizer, "scheduler", "get_last_lr")
        return next((rate for rate in rates.values() if rate is not None), [])


class PipeOptimizer:
    """An optimizer at each worker, for the parameters of its stages. Made by ``pipe.optimizer``.

    ::

        optimizer = pipe.optimizer(torch.optim.AdamW, lr=3e-4)
        for inputs, targets in data:
            optimizer.zero_grad()
            pipe.step(inputs, targets, loss=loss_fn)
            optimizer.step()
    """

    def __init__(self, parts: RemoteParts, gradients: ReplicatedGradients) -> None:
        self._parts = parts
        self._gradients = gradients

    def step(self) -> None:
        """Changes the parameters of all stages by their gradients.

        Raises:
            RuntimeError: the gradients of a stage's replicas differ, as the last step failed.
        """
        self._gradients.check()
        self._parts.call(state.call_optimizer, "optimizer", "step")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all stages."""
        self._parts.call(state.call_optimizer, "optimizer", "zero_grad", set_to_none)
        self._gradients.broken = False

    def scheduler(self, cls: Callable[..., Any], **options: Any) -> PipeScheduler:
        """A learning-rate scheduler for the optimizers.

        Args:
            cls: its class, such as ``torch.optim.lr_scheduler.StepLR``.
            options: its arguments, without the optimizer.
        """
        self._parts.set_up("scheduler", state.make_scheduler, cls, options)
        return PipeScheduler(self._parts)

    def state_dict(self) -> dict[str, Any]:
        """What the optimizers keep, by the names of the parameters in the plain Sequential."""
        whole: dict[str, Any] = {"parameters": {}, "scheduler": None}
        for found in self._parts.call(state.optimizer_state).values():
            whole["parameters"].update(found["parameters"])
            whole["scheduler"] = whole["scheduler"] or found["scheduler"]
        return whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what :meth:`state_dict` gave, also into another division into stages."""
        self._parts.call(state.load_optimizer, state_dict)
