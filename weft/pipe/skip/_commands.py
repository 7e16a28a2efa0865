"""What a skippable module's ``forward`` yields."""

from __future__ import annotations

from torch import Tensor


class stash:
    """``yield stash(name, tensor)`` puts a tensor, or None, on its way to whoever pops the name."""

    __slots__ = ("name", "tensor")

    def __init__(self, name: str, tensor: Tensor | None) -> None:
        self.name = name
        self.tensor = tensor

    def __repr__(self) -> str:
        return f"stash({self.name!r})"


class pop:
    """``tensor = yield pop(name)`` receives what an earlier layer stashed under that name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"pop({self.name!r})"
