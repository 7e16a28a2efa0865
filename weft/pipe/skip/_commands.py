"""What a skippable module's ``forward`` yields."""

from __future__ import annotations

import dataclasses

from torch import Tensor


@dataclasses.dataclass(eq=False, slots=True)
class stash:
    """``yield stash(name, tensor)`` hands a tensor, or None, to the layer that pops the name."""

    name: str
    tensor: Tensor | None

    def __repr__(self) -> str:
        return f"stash({self.name!r})"


@dataclasses.dataclass(eq=False, slots=True)
class pop:
    """``tensor = yield pop(name)`` receives what an earlier layer stashed under that name."""

    name: str

    def __repr__(self) -> str:
        return f"pop({self.name!r})"
