"""Methods of ``nn.Module`` that a Pipe refuses because its layers are on workers."""

from __future__ import annotations

from typing import Any, NoReturn

from weft.pipe._pipe import Pipe


class LayersElsewhere(Pipe):
    """A Pipe without layers of its own."""

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
