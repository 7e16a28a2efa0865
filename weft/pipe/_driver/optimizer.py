"""The driver's hold on the optimizers at the workers, one each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.pipe._driver.gradients import ReplicatedGradients
from weft.pipe._driver.remote_parts import RemoteParts, as_a_whole
from weft.pipe._workers import calls, state


class PipeScheduler:
    """A learning-rate scheduler at each worker. Made by :meth:`PipeOptimizer.scheduler`.

    Its methods raise RuntimeError after another one was made, which is then the only one.
    """

    def __init__(self, parts: RemoteParts, made: calls.Call) -> None:
        self._parts = parts
        self._made = made

    def step(self, *args: Any) -> None:
        """Steps all of them, with these arguments, such as the loss for ``ReduceLROnPlateau``."""
        self._check()
        self._parts.call(state.call_optimizer, "scheduler", "step", *args)

    def get_last_lr(self) -> list[float]:
        """The learning rates, which are the same at all workers."""
        self._check()
        rates = self._parts.call(state.call_optimizer, "scheduler", "get_last_lr")
        return next((rate for rate in rates.values() if rate is not None), [])

    def _check(self) -> None:
        last = self._parts.last_set_up("scheduler")
        if last is None:
            raise RuntimeError(
                f"this {_class_of(self._made)} of the Pipe is gone: pipe.optimizer() has made another "
                "optimizer, or another scheduler() failed: call scheduler() of the last optimizer"
            )
        if last is not self._made:
            raise RuntimeError(
                f"this {_class_of(self._made)} of the Pipe was replaced: scheduler() has made a "
                f"{_class_of(last)}, and an optimizer has one. For several, give scheduler() a function "
                "that makes a ChainedScheduler or a SequentialLR of them"
            )


def _class_of(made: calls.Call) -> str:
    """Of an optimizer or a scheduler: its name."""
    cls = made[1][0]
    return getattr(cls, "__name__", str(cls))


class PipeOptimizer:
    """An optimizer at each worker, for the parameters of its stages. Made by ``pipe.optimizer``.

    ::

        optimizer = pipe.optimizer(torch.optim.AdamW, lr=3e-4)
        for inputs, targets in data:
            optimizer.zero_grad()
            pipe.step(inputs, targets, loss=loss_fn)
            optimizer.step()

    Its methods raise RuntimeError after another one was made, which is then the only one.
    """

    def __init__(
        self, parts: RemoteParts, made: calls.Call, gradients: ReplicatedGradients
    ) -> None:
        self._parts = parts
        self._made = made
        self._gradients = gradients

    @property
    def param_groups(self) -> Any:
        """They are at the workers.

        Raises:
            AttributeError: always, as for what asks an optimizer of this process, such as a GradScaler.
        """
        raise AttributeError(
            "a Pipe's optimizer has no param_groups here: they are at the workers. Give options to "
            "pipe.optimizer() and change them with scheduler(); torch's GradScaler and schedulers need "
            "an optimizer of this process"
        )

    def step(self) -> None:
        """Changes the parameters of all stages by their gradients.

        Raises:
            RuntimeError: the gradients of a stage's replicas differ, as the last step failed.
        """
        self._check()
        self._gradients.check()
        self._parts.call(state.call_optimizer, "optimizer", "step")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all stages."""
        self._check()
        self._parts.call(state.call_optimizer, "optimizer", "zero_grad", set_to_none)
        self._gradients.broken = False

    @as_a_whole
    def scheduler(self, cls: Callable[..., Any], /, **options: Any) -> PipeScheduler:
        """A learning-rate scheduler for the optimizers, in the place of one that was made before.

        That one goes also where this raises.

        Args:
            cls: its class, such as ``torch.optim.lr_scheduler.StepLR``, or a function that makes one
                of several for the optimizer that it is given.
            options: its arguments, without the optimizer.
        """
        self._check()
        self._parts.forget("scheduler")
        made = self._parts.set_up("scheduler", state.make_scheduler, cls, options)
        return PipeScheduler(self._parts, made)

    def state_dict(self) -> dict[str, Any]:
        """What the optimizers keep, by the names of the parameters in the plain Sequential."""
        self._check()
        whole: dict[str, Any] = {"parameters": {}, "scheduler": None}
        for found in self._parts.call(state.optimizer_state).values():
            whole["parameters"].update(found["parameters"])
            whole["scheduler"] = whole["scheduler"] or found["scheduler"]
        return whole

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what :meth:`state_dict` gave, also into another division into stages.

        Raises:
            KeyError: it is of other parameters.
            RuntimeError: parameters of one group have different options in it.
            ValueError: it is the state of another optimizer than that of a Pipe.
        """
        self._check()
        if "parameters" not in state_dict:
            raise ValueError(
                f"this is not the state of a Pipe's optimizer, which has 'parameters' by their names: it "
                f"has {', '.join(map(repr, state_dict))}. Load what state_dict() of a Pipe's optimizer gave"
            )
        names = set().union(*self._parts.call(state.optimized).values())
        unknown = [name for name in state_dict["parameters"] if name not in names]
        if unknown:
            raise KeyError(
                f"the optimizer's state has {', '.join(unknown)}, which this Pipe's optimizer does not have"
            )
        self._parts.call(state.load_optimizer, state_dict)

    def _check(self) -> None:
        last = self._parts.last_set_up("optimizer")
        if last is None:
            raise RuntimeError(
                f"this {_class_of(self._made)} of the Pipe is gone: another pipe.optimizer() failed, and "
                "some workers may have what it made: call pipe.optimizer() again"
            )
        if last is not self._made:
            raise RuntimeError(
                f"this {_class_of(self._made)} of the Pipe was replaced: pipe.optimizer() has made a "
                f"{_class_of(last)}, and a Pipe has one; use that"
            )
