"""Skip connections of a Sequential that bypass the layers between.

A layer decorated with :func:`skippable` declares by name what it stashes and what it pops, and does
so with ``yield``::

    @skippable(stash=["residual"])
    class Early(nn.Module):
        def forward(self, input):
            yield stash("residual", input)
            return f(input)

    @skippable(pop=["residual"])
    class Late(nn.Module):
        def forward(self, input):
            residual = yield pop("residual")
            return g(input) + residual

In a :class:`weft.Pipe` the tensor goes directly from one partition to the other. The same layers
work in a plain Sequential. The contract is that of
``torch.distributed.pipeline.sync.skip`` (PyTorch up to 2.3).
"""

from __future__ import annotations

from weft.pipe.skip._layout import verify_skippables
from weft.pipe.skip._namespace import Namespace
from weft.pipe.skip._skippable import Skippable, pop, skippable, stash

__all__ = ["Namespace", "Skippable", "pop", "skippable", "stash", "verify_skippables"]
